#include "common/zmq/keys.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>

#include "common/files.h"
#include "common/secret_file.h"

namespace bitalloc {
namespace fs = std::filesystem;
namespace {

constexpr size_t kKeyCharacters = 40;
constexpr size_t kMaxKeyFileBytes = 4'096;
constexpr size_t kMaxAllowListBytes = size_t{8} << 20;  // some 100,000 keys
constexpr size_t kMaxNameBytes = 64;
constexpr const char* kSecretWord = "secret";

constexpr std::array<std::pair<KeyRole, const char*>, 5> kRoles = {{{KeyRole::kServer, "server"},
                                                                    {KeyRole::kViewer, "viewer"},
                                                                    {KeyRole::kClient, "client"},
                                                                    {KeyRole::kAdmin, "admin"},
                                                                    {KeyRole::kWorker, "worker"}}};

struct Line {
  int number = 0;
  std::vector<std::string> words;
};

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream stream(text);
  int number = 0;
  for (std::string row; std::getline(stream, row);) {
    Line line{++number, {}};
    std::istringstream words(row);
    for (std::string word; words >> word;) line.words.push_back(word);
    if (!line.words.empty() && line.words[0][0] != '#') lines.push_back(std::move(line));
  }
  return lines;
}

Status check_name(const std::string& name) {
  const bool good = !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' &&
                    name[0] != '-' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return c < 128 && (std::isalnum(c) || c == '.' || c == '_' || c == '-');
                    });
  if (good) return {};
  return invalid_argument(
      fmt::format("'{}' is not a name of a key: use 1 to 64 letters, digits, '.', '_', '-'", name),
      "name");
}

Status check_key(const std::string& key) {
  std::array<uint8_t, 32> bytes;
  if (key.size() == kKeyCharacters && zmq_z85_decode(bytes.data(), key.c_str()) != nullptr) {
    return {};
  }
  return invalid_argument(
      fmt::format("a key is 40 characters of Z85; this one has {} or others", key.size()), "key");
}

// [ROLE, NAME, KEY]
Result<NamedKey> parse_words(const std::vector<std::string>& words) {
  if (words.size() != 3) {
    return invalid_argument(fmt::format("{} words instead of: ROLE NAME KEY", words.size()));
  }
  NamedKey key;
  BA_ASSIGN_OR_RETURN(key.role, parse_key_role(words[0]));
  BA_RETURN_IF_ERROR(check_name(words[1]));
  BA_RETURN_IF_ERROR(check_key(words[2]));
  key.name = words[1];
  key.key = words[2];
  return key;
}

Error in_file(Error error, const fs::path& file) {
  error.field = file.string();
  return std::move(error).with_context(file.string());
}

// The one line of a key file.
Result<std::vector<std::string>> read_only_line(const fs::path& file) {
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxKeyFileBytes));
  const std::vector<Line> lines = lines_of(text);
  if (lines.size() == 1) return lines[0].words;
  return in_file(invalid_argument(fmt::format("{} lines instead of one key", lines.size())), file);
}

Status write_new_file(const fs::path& file, mode_t mode, const std::string& text) {
  const auto failed = [&](const char* action) {
    return invalid_argument(
        fmt::format("cannot {} {}: {}", action, file.string(), std::strerror(errno)), file.string(),
        errno == EEXIST ? "choose another --name, or remove the old key first" : "");
  };
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return failed("make");
  const bool written =
      ::write(fd, text.data(), text.size()) == std::ssize(text) && ::fsync(fd) == 0;
  const Status status = written ? Status() : Status(failed("write"));
  ::close(fd);
  return status;
}

std::string public_line(const NamedKey& key) {
  return fmt::format("{} {} {}\n", key_role_name(key.role), key.name, key.key);
}

std::string role_names(const std::vector<KeyRole>& roles) {
  std::string names;
  for (const KeyRole role : roles) {
    names += (names.empty() ? "" : " or ") + std::string(key_role_name(role));
  }
  return names;
}

Result<std::string> own_secret(const std::string& file, const std::vector<KeyRole>& roles) {
  if (file.empty()) {
    const char* secret = std::getenv("BITALLOC_SECRET_KEY");
    if (secret != nullptr && check_key(secret).ok()) return std::string(secret);
    return invalid_argument(
        secret == nullptr ? "no key to show" : "BITALLOC_SECRET_KEY is not 40 characters of Z85",
        "key", "give the .key file that `bitalloc keys new` made (--key, BITALLOC_KEY)");
  }
  BA_ASSIGN_OR_RETURN(const NamedKey key, read_secret_key(file));
  if (std::find(roles.begin(), roles.end(), key.role) != roles.end()) return key.key;
  return invalid_argument(fmt::format("{} is the key of a {}; here it takes one of a {}", file,
                                      key_role_name(key.role), role_names(roles)),
                          file);
}

}  // namespace

const char* key_role_name(KeyRole role) {
  for (const auto& [known, name] : kRoles) {
    if (known == role) return name;
  }
  BA_CHECK(false, "role without a name");
}

Result<KeyRole> parse_key_role(const std::string& name) {
  for (const auto& [role, known] : kRoles) {
    if (name == known) return role;
  }
  return invalid_argument(
      fmt::format("'{}' is not a role; there are viewer, client, admin, worker (and server)", name),
      "role");
}

KeyPair make_key_pair() {
  std::array<char, kKeyCharacters + 1> public_key;
  std::array<char, kKeyCharacters + 1> secret_key;
  BA_CHECK(zmq_curve_keypair(public_key.data(), secret_key.data()) == 0, "zmq_curve_keypair");
  return {public_key.data(), secret_key.data()};
}

Result<NamedKey> read_public_key(const fs::path& file) {
  BA_ASSIGN_OR_RETURN(const std::vector<std::string> words, read_only_line(file));
  if (words[0] == kSecretWord) {
    return invalid_argument(fmt::format("{} holds a secret key, not a public one", file.string()),
                            file.string(), "give the .pub file; nobody needs to see the other");
  }
  Result<NamedKey> key = parse_words(words);
  return key.ok() ? std::move(key) : in_file(std::move(key).error(), file);
}

Result<NamedKey> read_secret_key(const fs::path& file) {
  BA_ASSIGN_OR_RETURN(const std::vector<std::string> words, read_only_line(file));
  if (words[0] != kSecretWord) {
    return invalid_argument(fmt::format("{} holds no secret key", file.string()), file.string(),
                            "give the .key file that `bitalloc keys` made");
  }
  BA_RETURN_IF_ERROR(check_secret_mode(file));
  Result<NamedKey> key = parse_words({words.begin() + 1, words.end()});
  return key.ok() ? std::move(key) : in_file(std::move(key).error(), file);
}

Result<NamedKey> make_key_files(const fs::path& directory, KeyRole role, const std::string& name) {
  BA_RETURN_IF_ERROR(check_name(name));
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return invalid_argument(
        fmt::format("cannot make {}: {}", directory.string(), std::strerror(errno)),
        directory.string());
  }
  const KeyPair pair = make_key_pair();
  const NamedKey key{role, name, pair.public_key};
  const std::string secret =
      fmt::format("# Show this file to nobody; {}.pub is its public half.\n{} {} {} {}\n", name,
                  kSecretWord, key_role_name(role), name, pair.secret_key);
  BA_RETURN_IF_ERROR(write_new_file(directory / (name + ".key"), 0600, secret));
  BA_RETURN_IF_ERROR(write_new_file(directory / (name + ".pub"), 0644, public_line(key)));
  return key;
}

Result<std::vector<NamedKey>> read_allow_list(const fs::path& file) {
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxAllowListBytes));
  std::vector<NamedKey> keys;
  std::set<std::string> seen;
  for (const Line& line : lines_of(text)) {
    const std::string where = fmt::format("{}:{}", file.string(), line.number);
    Result<NamedKey> key = parse_words(line.words);
    if (!key.ok()) return in_file(std::move(key).error(), where);
    if (key->role == KeyRole::kServer) {
      return invalid_argument(fmt::format("{}: a server's key allows nothing", where), where);
    }
    if (!seen.insert("key " + key->key).second || !seen.insert("name " + key->name).second) {
      return invalid_argument(
          fmt::format("{}: the key or the name '{}' is there twice", where, key->name), where);
    }
    keys.push_back(std::move(key).value());
  }
  return keys;
}

Status write_allow_list(const fs::path& file, const std::vector<NamedKey>& keys) {
  std::string text = "# Who may connect: ROLE NAME PUBLIC-KEY. Read again when it changes.\n";
  for (const NamedKey& key : keys) text += public_line(key);
  return write_file_atomically(file, text);
}

Result<CurveClient> load_client_keys(const std::string& server_public_key_file,
                                     const std::string& key_file,
                                     const std::vector<KeyRole>& roles) {
  CurveClient client;
  if (server_public_key_file.empty()) {
    return invalid_argument(
        "no public key of the service", "server_public_key",
        "give the server.pub of the service (--server-public-key, BITALLOC_SERVER_PUBLIC_KEY)");
  }
  BA_ASSIGN_OR_RETURN(const NamedKey server, read_public_key(server_public_key_file));
  if (server.role != KeyRole::kServer) {
    return invalid_argument(fmt::format("{} is the key of a {}, not of a server",
                                        server_public_key_file, key_role_name(server.role)),
                            server_public_key_file);
  }
  client.server_public_key = server.key;
  BA_ASSIGN_OR_RETURN(client.secret_key, own_secret(key_file, roles));
  std::array<char, kKeyCharacters + 1> own_public;
  BA_CHECK(zmq_curve_public(own_public.data(), client.secret_key.c_str()) == 0, "curve_public");
  client.public_key = own_public.data();
  return client;
}

}  // namespace bitalloc
