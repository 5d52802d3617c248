#include "ops/cli/key_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "ops/cli/file_lock.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

constexpr double kLockSeconds = 10;

// One editor of the list at a time.
Result<FileLock> lock_list(const fs::path& list) {
  const fs::path folder = list.parent_path();
  std::error_code error;
  if (!folder.empty() && !fs::exists(folder, error)) fs::create_directories(folder, error);
  BA_ASSIGN_OR_RETURN(FileLock lock, FileLock::open(list.string() + ".lock"));
  if (lock.lock(FileLock::Mode::kExclusive, kLockSeconds)) return lock;
  return unavailable("another command does not finish changing the list", list.string());
}

bool is_loopback(const std::string& endpoint) {
  return endpoint.starts_with("tcp://127.") || endpoint.starts_with("tcp://localhost:") ||
         endpoint.starts_with("tcp://[::1]:");
}

std::string or_if_there(const std::string& named, const fs::path& usual) {
  std::error_code ignored;
  return named.empty() && fs::exists(usual, ignored) ? usual.string() : named;
}

}  // namespace

fs::path keys_folder(const fs::path& home) { return home / "keys"; }
fs::path allow_list_file(const fs::path& home) { return keys_folder(home) / "allowed_keys"; }

Result<std::vector<NamedKey>> allowed_keys(const fs::path& list) {
  std::error_code ignored;
  if (!fs::exists(list, ignored)) return std::vector<NamedKey>();
  return read_allow_list(list);
}

Status allow_key(const fs::path& list, const NamedKey& key) {
  BA_ASSIGN_OR_RETURN(const FileLock lock, lock_list(list));
  BA_ASSIGN_OR_RETURN(std::vector<NamedKey> keys, allowed_keys(list));
  for (const NamedKey& other : keys) {
    if (other.key == key.key && other.name == key.name && other.role == key.role) return {};
    if (other.key != key.key && other.name != key.name) continue;
    return invalid_argument(
        fmt::format("{} has {} '{}' already", list.string(), key_role_name(other.role), other.name),
        list.string(), fmt::format("bitalloc keys revoke {}, if that one is to go", other.name));
  }
  keys.push_back(key);
  return write_allow_list(list, keys);
}

Status revoke_key(const fs::path& list, const std::string& name) {
  BA_ASSIGN_OR_RETURN(const FileLock lock, lock_list(list));
  BA_ASSIGN_OR_RETURN(std::vector<NamedKey> keys, allowed_keys(list));
  if (std::erase_if(keys, [&](const NamedKey& key) { return key.name == name; }) == 0) {
    return not_found(fmt::format("{} has no key named '{}'", list.string(), name), "NAME",
                     "`bitalloc keys list` shows them");
  }
  return write_allow_list(list, keys);
}

Result<bool> ensure_server_keys(const fs::path& home) {
  const fs::path list = allow_list_file(home);
  BA_ASSIGN_OR_RETURN(const FileLock lock, lock_list(list));
  std::error_code ignored;
  if (!fs::exists(list, ignored)) BA_RETURN_IF_ERROR(write_allow_list(list, {}));
  if (fs::exists(keys_folder(home) / "server.key", ignored)) return false;
  BA_RETURN_IF_ERROR(make_key_files(keys_folder(home), KeyRole::kServer, "server"));
  return true;
}

Result<std::optional<CurveClient>> connection_keys(const Context& context) {
  if (!context.server.starts_with("tcp://")) return std::optional<CurveClient>();
  const fs::path folder = keys_folder(context.home);
  const std::string server = or_if_there(context.server_public_key, folder / "server.pub");
  const bool has_secret = std::getenv("BITALLOC_SECRET_KEY") != nullptr;
  const std::string own = has_secret && context.key.empty()
                              ? std::string()
                              : or_if_there(context.key, folder / "client.key");
  if (server.empty() && own.empty() && !has_secret && is_loopback(context.server)) {
    return std::optional<CurveClient>();
  }
  BA_ASSIGN_OR_RETURN(
      CurveClient keys,
      load_client_keys(server, own, {KeyRole::kViewer, KeyRole::kClient, KeyRole::kAdmin}));
  return std::optional(std::move(keys));
}

}  // namespace bitalloc::cli
