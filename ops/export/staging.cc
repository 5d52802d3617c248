#include "ops/export/staging.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/files.h"

namespace bitalloc {
namespace fs = std::filesystem;
namespace {

Error system_error(const char* action, const fs::path& path, int number = errno) {
  std::string text = fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(number));
  return number == ENOSPC || number == EDQUOT ? resource_exhausted(std::move(text), path.string())
                                              : invalid_argument(std::move(text), path.string());
}

std::string sibling_prefix(const fs::path& target) {
  return fmt::format(".{}.partial-", target.filename().string());
}

// Opens and locks a staging directory. −1 when it is gone or a living process holds it.
int try_lock(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

void remove_leftovers(const fs::path& target) {
  std::error_code ignored;  // a leftover that cannot be removed hinders nobody
  const std::string prefix = sibling_prefix(target);
  for (const auto& entry : fs::directory_iterator(target.parent_path(), ignored)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const int fd = try_lock(entry.path());
    if (fd < 0) continue;
    fs::remove_all(entry.path(), ignored);
    ::close(fd);
  }
}

Status check_target(const fs::path& target, bool replace, const std::string& marker) {
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (status.type() != fs::file_type::directory) {
    return invalid_argument(fmt::format("{} exists and is not a directory", target.string()),
                            target.string(), "choose another output directory");
  }
  if (fs::is_empty(target, error)) return {};
  if (!replace) {
    return invalid_argument(fmt::format("{} exists and is not empty", target.string()),
                            target.string(),
                            "choose another output directory, or --force to replace it");
  }
  if (!fs::exists(target / marker, error)) {
    return invalid_argument(
        fmt::format("{} holds no {}: it is no earlier export, so it is not replaced",
                    target.string(), marker),
        target.string(), "remove it yourself, or choose another output directory");
  }
  return {};
}

Status flush(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error("open", path);
  const int failed = ::fsync(fd);
  const int number = errno;
  ::close(fd);
  if (failed != 0) return system_error("flush", path, number);
  return {};
}

}  // namespace

Result<StagingDirectory> StagingDirectory::create(const fs::path& target, bool replace,
                                                  const std::string& marker) {
  std::error_code error;
  fs::path place = fs::weakly_canonical(fs::absolute(target), error);
  if (error) return system_error("resolve", target, error.value());
  if (!place.has_filename()) place = place.parent_path();  // "out/"
  BA_RETURN_IF_ERROR(check_target(place, replace, marker));
  fs::create_directories(place.parent_path(), error);
  if (error) return system_error("create", place.parent_path(), error.value());
  remove_leftovers(place);
  std::string name = (place.parent_path() / (sibling_prefix(place) + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr)
    return system_error("create a directory in", place.parent_path());
  const int fd = try_lock(name);
  if (fd < 0) return system_error("lock", name);
  if (::chmod(name.c_str(), 0755) != 0) return system_error("open up", name);  // mkdtemp: 0700
  return StagingDirectory(place, name, fd);
}

StagingDirectory::~StagingDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

StagingDirectory::StagingDirectory(StagingDirectory&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::exchange(other.path_, {})),
      lock_fd_(std::exchange(other.lock_fd_, -1)) {}

Status StagingDirectory::write_file(const std::string& name, std::string_view content) {
  return write_file_atomically(path_ / name, content);
}

Result<StagingDirectory::Placed> StagingDirectory::place_file(const fs::path& source,
                                                              const std::string& name) {
  std::error_code error;
  const fs::path file = fs::canonical(source, error);
  if (error) return system_error("resolve", source, error.value());
  fs::create_hard_link(file, path_ / name, error);
  if (!error) return Placed::kLinked;
  const int number = error.value();
  const bool copy_instead = number == EXDEV || number == EPERM || number == EMLINK ||
                            number == EOPNOTSUPP || number == EACCES;
  if (!copy_instead) return system_error("link", file, number);
  fs::copy_file(file, path_ / name, error);
  if (error) return system_error("copy", file, error.value());
  BA_RETURN_IF_ERROR(flush(path_ / name));
  return Placed::kCopied;
}

Status StagingDirectory::publish() {
  BA_RETURN_IF_ERROR(flush(path_));
  if (::rename(path_.c_str(), target_.c_str()) == 0) {
    path_.clear();
  } else if (errno == ENOTEMPTY || errno == EEXIST) {
    // Both change places in one step; the old content then goes with this object.
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
      return system_error("replace", target_);
    }
  } else {
    return system_error("create", target_);
  }
  return flush(target_.parent_path());
}

}  // namespace bitalloc
