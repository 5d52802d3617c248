#include "coordinator/retry_pool.h"

namespace bitalloc {

void RetryPool::insert(const Group& group, size_t slot) {
  count_ += groups_[group].insert(slot).second ? 1 : 0;
}

void RetryPool::erase(const Group& group, size_t slot) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  count_ -= found->second.erase(slot);
  if (found->second.empty()) groups_.erase(found);
}

std::optional<size_t> RetryPool::pick(
    const WorkerEpoch& worker, int64_t memory_bytes,
    const std::function<bool(const Group&, size_t slot)>& hopeless) const {
  for (const auto& [group, slots] : groups_) {
    if (group.more_than_bytes >= memory_bytes && group.more_than_bytes >= 0)
      break;  // all want more
    if (group.failed_on != worker) return *slots.begin();
  }
  for (const auto& [group, slots] : groups_) {
    if (hopeless(group, *slots.begin())) return *slots.begin();
  }
  return std::nullopt;
}

}  // namespace bitalloc
