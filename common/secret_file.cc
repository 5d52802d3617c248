#include "common/secret_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/files.h"

namespace bitalloc {
namespace {

constexpr size_t kMaxBytes = 4'096;

Error failed(const std::filesystem::path& file, const char* action) {
  return invalid_argument(
      fmt::format("cannot {} {}: {}", action, file.string(), std::strerror(errno)), file.string());
}

}  // namespace

Status check_secret_mode(const std::filesystem::path& file) {
  struct stat state = {};
  if (::stat(file.c_str(), &state) != 0) return failed(file, "find");
  const mode_t open_to_others = state.st_uid == 0 ? 0027 : 0077;
  if ((state.st_mode & open_to_others) == 0) return {};
  return invalid_argument(fmt::format("{} holds a secret, but others may use it (mode {:04o})",
                                      file.string(), state.st_mode & 07777),
                          file.string(), fmt::format("chmod 600 '{}'", file.string()));
}

Result<std::string> read_secret_file(const std::filesystem::path& file) {
  BA_RETURN_IF_ERROR(check_secret_mode(file));
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxBytes));
  std::string line = text.substr(0, text.find_first_of("\r\n"));
  if (line.empty()) {
    return invalid_argument(fmt::format("the first line of {} is empty", file.string()),
                            file.string());
  }
  return line;
}

Status make_secret_file(const std::filesystem::path& file, const std::string& secret) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EEXIST) return {};
  if (fd < 0) return failed(file, "make");
  const std::string text = secret + "\n";
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(fd) == 0;
  const Status status = written ? Status() : Status(failed(file, "write"));
  ::close(fd);
  if (!written) ::unlink(file.c_str());
  return status;
}

std::string random_secret() {
  std::array<unsigned char, 32> bytes;
  BA_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "no randomness");
  std::string hex;
  for (const unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace bitalloc
