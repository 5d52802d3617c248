#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/status.h"
#include "tests/fuzz/target.h"

namespace bitalloc::fuzz {

std::string file_with(std::string_view input) {
  static const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  BA_CHECK(fd >= 0, "memfd_create");
  const auto size = static_cast<ssize_t>(input.size());
  BA_CHECK(::ftruncate(fd, 0) == 0 && ::pwrite(fd, input.data(), input.size(), 0) == size, "write");
  return fmt::format("/proc/self/fd/{}", fd);
}

}  // namespace bitalloc::fuzz
