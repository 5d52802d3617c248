// The units of one search that failed somewhere, have rested and wait for another worker.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "common/ids.h"

namespace bitalloc {

class RetryPool {
 public:
  // Who should take a unit: not the worker it failed on, and after a lack of memory only one with
  // more than `more_than_bytes` (−1: any).
  struct Group {
    int64_t more_than_bytes = -1;
    WorkerEpoch failed_on;
    auto operator<=>(const Group&) const = default;
  };

  void insert(const Group& group, size_t slot);
  void erase(const Group& group, size_t slot);
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }

  // The first unit meant for this worker; when there is none, the first of a group that nobody else
  // can serve (`hopeless` says so). Steps: groups, of which there is one for each worker on which
  // units failed that are not taken yet.
  std::optional<size_t> pick(const WorkerEpoch& worker, int64_t memory_bytes,
                             const std::function<bool(const Group&, size_t slot)>& hopeless) const;

 private:
  std::map<Group, std::set<size_t>> groups_;  // none is empty
  size_t count_ = 0;
};

}  // namespace bitalloc
