// CURVE keys: making them, their files, and the list of those that a coordinator allows.
//
// Files are lines of words; a line that begins with '#' is a comment.
//   NAME.pub, and a line of an allow-list:  ROLE NAME PUBLIC-KEY
//   NAME.key:                               secret ROLE NAME SECRET-KEY
// Keys are Z85 (40 characters, https://rfc.zeromq.org/spec/32/). A .pub file is a line that an
// allow-list takes as it is. Pure functions of their files; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/zmq/socket.h"

namespace bitalloc {

// What the holder of a key may do; the table is in coordinator/access.h. A server's key allows
// nothing: it is what clients and workers know the coordinator by.
enum class KeyRole { kServer, kViewer, kClient, kAdmin, kWorker };

const char* key_role_name(KeyRole role);  // "server", "viewer", …
Result<KeyRole> parse_key_role(const std::string& name);

struct KeyPair {
  std::string public_key;
  std::string secret_key;
};
KeyPair make_key_pair();

// Somebody's key, public or secret according to where it was read from.
struct NamedKey {
  KeyRole role = KeyRole::kClient;
  std::string name;  // 1 to 64 of [A-Za-z0-9._-]
  std::string key;
};

// Errors: kInvalidArgument naming the file and what is wrong with it. A secret key that others than
// its owner can read is refused (a file of root may be readable by its group, as Kubernetes mounts
// secrets).
Result<NamedKey> read_public_key(const std::filesystem::path& file);
Result<NamedKey> read_secret_key(const std::filesystem::path& file);

// Makes NAME.key (mode 0600) and NAME.pub in `directory`, which is made when missing (mode 0700).
// Gives the public half. Errors: kInvalidArgument for a bad name or a file that is there already.
Result<NamedKey> make_key_files(const std::filesystem::path& directory, KeyRole role,
                                const std::string& name);

// The public keys that may connect. Names and keys are unique. Errors: kInvalidArgument with
// file:line.
Result<std::vector<NamedKey>> read_allow_list(const std::filesystem::path& file);
Status write_allow_list(const std::filesystem::path& file, const std::vector<NamedKey>& keys);

// What a client or worker needs to connect: its own key, from `key_file` or, when that is empty,
// from the variable BITALLOC_SECRET_KEY (the 40 characters), and the server's public key.
// Errors: as above; kInvalidArgument when a key is missing or has none of `roles`.
Result<CurveClient> load_client_keys(const std::string& server_public_key_file,
                                     const std::string& key_file,
                                     const std::vector<KeyRole>& roles);

}  // namespace bitalloc
