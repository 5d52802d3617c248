#include "common/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace bitalloc {
namespace {

Error system_error(const std::filesystem::path& file, const char* action) {
  const int number = errno;
  const std::string text =
      fmt::format("cannot {} {}: {}", action, file.string(), std::strerror(number));
  return number == ENOSPC || number == EDQUOT ? resource_exhausted(text, file.string())
                                              : invalid_argument(text, file.string());
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

Result<std::string> read_file(const std::filesystem::path& file, size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    const bool exists = std::filesystem::exists(file, error);
    return invalid_argument(
        fmt::format("{}: {}", exists ? "not a regular file" : "no such file", file.string()),
        file.string());
  }
  const auto size = std::filesystem::file_size(file, error);
  if (error || size > max_bytes) {
    return invalid_argument(
        fmt::format("{} is larger than the limit of {} bytes", file.string(), max_bytes),
        file.string());
  }
  std::ifstream stream(file, std::ios::binary);
  std::string content(size, '\0');
  if (!stream.read(content.data(), static_cast<std::streamsize>(size))) {
    return system_error(file, "read");
  }
  return content;
}

namespace {

// A pipe or a device is written to, never replaced.
Status write_special_file(const std::filesystem::path& file, std::string_view content) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return system_error(file, "open");
  Status status;
  if (!write_all(fd, content)) status = system_error(file, "write");
  ::close(fd);
  return status;
}

}  // namespace

Status write_file_atomically(const std::filesystem::path& link, std::string_view content) {
  std::error_code ignored;
  const bool is_link = std::filesystem::is_symlink(link, ignored);
  const auto file = is_link ? std::filesystem::weakly_canonical(link, ignored) : link;
  if (std::filesystem::is_fifo(file, ignored) ||
      std::filesystem::is_character_file(file, ignored)) {
    return write_special_file(file, content);
  }
  const std::string temporary = fmt::format("{}.tmp-{}", file.string(), ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return system_error(temporary, "create");
  const bool good = write_all(fd, content) && ::fsync(fd) == 0;
  if (!good) {
    Error error = system_error(temporary, "write");
    ::close(fd);
    ::unlink(temporary.c_str());
    return error;
  }
  ::close(fd);
  if (::rename(temporary.c_str(), file.c_str()) != 0) {
    Error error = system_error(file, "replace");
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

}  // namespace bitalloc
