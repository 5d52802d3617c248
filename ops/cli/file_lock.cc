#include "ops/cli/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace bitalloc::cli {

Result<FileLock> FileLock::open(const std::filesystem::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    return invalid_argument(fmt::format("cannot open {}: {}", file.string(), std::strerror(errno)),
                            file.string(),
                            "give a folder that you may write to with --home or BITALLOC_HOME");
  }
  return FileLock(descriptor);
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool FileLock::try_lock(Mode mode) {
  const int kind = mode == Mode::kShared ? LOCK_SH : LOCK_EX;
  return ::flock(descriptor_, kind | LOCK_NB) == 0;
}

bool FileLock::lock(Mode mode, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!try_lock(mode)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

void FileLock::unlock() { ::flock(descriptor_, LOCK_UN); }

void FileLock::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

}  // namespace bitalloc::cli
