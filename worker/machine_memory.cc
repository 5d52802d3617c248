#include "worker/machine_memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace bitalloc {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The number in a file that holds one; none for a missing file and for "max".
std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  int64_t value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

// The number after `key` in a file of lines "key number …", as /proc/meminfo and memory.stat are.
std::optional<int64_t> number_after(const fs::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

// How the two versions of control groups spell the same.
struct GroupFiles {
  const char* folder;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // key in memory.stat
};
constexpr GroupFiles kVersion1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

int64_t left_in_group(const fs::path& folder, const GroupFiles& files) {
  const auto limit = number_in(folder / files.limit);
  const auto usage = number_in(folder / files.usage);
  if (!limit || !usage) return kNoLimit;
  const int64_t reclaimable = number_after(folder / "memory.stat", files.reclaimable).value_or(0);
  return std::max<int64_t>(0, *limit - *usage + reclaimable);
}

// The least that the group and the groups around it leave. Inside a container the group's own
// folder is what is mounted, whatever its name outside.
int64_t left_up_from(const fs::path& top, const fs::path& group, const GroupFiles& files) {
  int64_t left = left_in_group(top, files);
  fs::path folder = top;
  for (const fs::path& name : group.relative_path()) {
    folder /= name;
    left = std::min(left, left_in_group(folder, files));
  }
  return left;
}

int64_t left_in_groups(const fs::path& root) {
  std::ifstream stream(root / "proc/self/cgroup");
  int64_t left = kNoLimit;
  for (std::string line; std::getline(stream, line);) {  // "4:memory:/a/b", "0::/a/b"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers == "memory") {
      left = std::min(left, left_up_from(root / kVersion1.folder, group, kVersion1));
    } else if (controllers.empty()) {
      left = std::min(left, left_up_from(root / kVersion2.folder, group, kVersion2));
    }
  }
  return left;
}

// Free and in all.
std::pair<size_t, size_t> device_memory(const c10::Device& device) {
  at::globalContext().lazyInitDevice(device.type());  // before, its allocator has no devices
  return c10::getDeviceAllocator(device.type())->getMemoryInfo(std::max<int>(0, device.index()));
}

}  // namespace

int64_t available_host_bytes(const fs::path& root) {
  const int64_t kib = number_after(root / "proc/meminfo", "MemAvailable:").value_or(0);
  return std::min(kib * 1024, left_in_groups(root));
}

int64_t available_bytes(const c10::Device& device) {
  return device.is_cpu() ? available_host_bytes()
                         : static_cast<int64_t>(device_memory(device).first);
}

int64_t total_bytes(const c10::Device& device) {
  if (!device.is_cpu()) return static_cast<int64_t>(device_memory(device).second);
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
}

void release_cached_memory(const c10::Device& device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
}

}  // namespace bitalloc
