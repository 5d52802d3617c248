// flock(2) on a file: the kernel frees it when the holder dies, even by kill -9.
#pragma once

#include <filesystem>

#include "common/status.h"

namespace bitalloc::cli {

// An open lock file; closing (or dying) frees the lock. Children do not inherit it unless they are
// handed `descriptor()` on purpose (process.h), which then keeps the lock held as long as they
// live.
class FileLock {
 public:
  enum class Mode { kShared, kExclusive };

  // Creates the file when missing. Errors: kInvalidArgument with the system's reason.
  static Result<FileLock> open(const std::filesystem::path& file);

  FileLock() = default;
  ~FileLock() { close(); }
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

  // At once or not at all.
  bool try_lock(Mode mode);
  // Waits at most `seconds`; false when somebody held it all the time.
  bool lock(Mode mode, double seconds);
  void unlock();
  void close();
  int descriptor() const { return descriptor_; }

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

}  // namespace bitalloc::cli
