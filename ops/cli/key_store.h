// The keys of a home: where they are, who is allowed, and which ones a connection uses.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/zmq/keys.h"
#include "ops/cli/command_line.h"

namespace bitalloc::cli {

// Below `home`: server.key, server.pub, NAME.key, NAME.pub, and the list of who is allowed.
std::filesystem::path keys_folder(const std::filesystem::path& home);
std::filesystem::path allow_list_file(const std::filesystem::path& home);

// Those of the list; none when there is no list yet. Errors: those of read_allow_list.
Result<std::vector<NamedKey>> allowed_keys(const std::filesystem::path& list);
// Puts a key on the list (made when missing), or does nothing when it is there already. Errors:
// kInvalidArgument when name or key is there as somebody else's.
Status allow_key(const std::filesystem::path& list, const NamedKey& key);
// Takes the key of that name off the list. Errors: kNotFound.
Status revoke_key(const std::filesystem::path& list, const std::string& name);

// The server's key and an allow-list in the home, made when missing. True: made now. Errors: as
// above.
Result<bool> ensure_server_keys(const std::filesystem::path& home);

// What `context` says about keys, for a connection to `context.server`: --server-public-key and
// --key, else the home's server.pub and client.key. Nothing for ipc:// and, when there are no keys,
// for the loopback. Errors: kInvalidArgument naming the file, or saying what is missing.
Result<std::optional<CurveClient>> connection_keys(const Context& context);

}  // namespace bitalloc::cli
