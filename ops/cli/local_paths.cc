#include "ops/cli/local_paths.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/sha256.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

// sockaddr_un holds 108 bytes; room for the longest name and libzmq's own use.
constexpr size_t kMaxSocketFolder = 80;

Status make_private_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return invalid_argument(
        fmt::format("cannot make the folder {}: {}", folder.string(), std::strerror(errno)),
        folder.string());
  }
  struct stat state = {};
  const bool ours = ::lstat(folder.c_str(), &state) == 0 && S_ISDIR(state.st_mode) &&
                    state.st_uid == ::getuid() && (state.st_mode & 077) == 0;
  if (ours) return {};
  return invalid_argument(
      fmt::format("{} is not a private folder of this user", folder.string()), folder.string(),
      "remove it, or choose a home with a shorter name (--home, BITALLOC_HOME)");
}

}  // namespace

LocalPaths local_paths(const fs::path& home) {
  std::error_code error;
  fs::path absolute = fs::weakly_canonical(fs::absolute(home), error);
  if (error) absolute = home;
  LocalPaths paths;
  paths.home = absolute;
  paths.redis = absolute / "redis";
  paths.run = absolute / "run";
  paths.searches = absolute / "searches";
  paths.logs = absolute / "logs";
  paths.cache = absolute / "cache";
  paths.sockets = paths.run;
  if (paths.run.string().size() > kMaxSocketFolder) {
    paths.sockets =
        fmt::format("/tmp/bitalloc-{}-{}", ::getuid(), sha256_hex(absolute.string()).substr(0, 16));
  }
  return paths;
}

Status make_folders(const LocalPaths& paths) {
  std::error_code error;
  fs::create_directories(paths.home, error);
  if (error) {
    return invalid_argument(
        fmt::format("cannot make the home {}: {}", paths.home.string(), error.message()),
        paths.home.string(), "choose another with --home or BITALLOC_HOME");
  }
  for (const fs::path& folder : {paths.redis, paths.run, paths.searches, paths.logs, paths.cache}) {
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return invalid_argument(
          fmt::format("cannot make the folder {}: {}", folder.string(), std::strerror(errno)),
          folder.string(), "choose another home with --home or BITALLOC_HOME");
    }
  }
  if (paths.sockets != paths.run) return make_private_folder(paths.sockets);
  return {};
}

}  // namespace bitalloc::cli
