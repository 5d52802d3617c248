#include "common/process_usage.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace bitalloc {

double cpu_seconds(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t after_name = text.rfind(')');  // the name may hold anything
  if (after_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(after_name + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;  // proc(5): 14 is utime, 15 stime
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

int64_t resident_bytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int count_descriptors(pid_t pid) {
  std::error_code error;
  int count = 0;
  for (std::filesystem::directory_iterator it(fmt::format("/proc/{}/fd", pid), error), end;
       !error && it != end; it.increment(error)) {
    ++count;
  }
  return count;
}

Status raise_descriptor_limit() {
  rlimit limit = {};
  bool done = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  limit.rlim_cur = limit.rlim_max;
  done = done && ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  if (done) return {};
  return internal_error(fmt::format("RLIMIT_NOFILE stays as it is: {}", std::strerror(errno)));
}

}  // namespace bitalloc
