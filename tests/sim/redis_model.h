// What the Lua scripts of coordinator/redis_scripts.h do, in memory: the lock with its fence, and
// one atomic change each. redis_model_test.cc holds it against a real redis-server.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/queue.h"
#include "coordinator/store.h"

namespace bitalloc::sim {

class RedisModel {
 public:
  struct Acquired {
    int64_t fence = 0;       // 0: somebody else's
    TimeMs stale_in_ms = 0;  // of that one's lock
  };
  // Times are of Redis' clock.
  Acquired acquire(bool take_over, TimeMs ttl_ms, TimeMs now);
  bool holds(int64_t fence) const { return fence_ == fence; }
  // Of a later connection than any before: those are refused from now on.
  bool admits(int64_t fence, int64_t connection);
  // REQUIRES: holds(fence).
  void renew(TimeMs ttl_ms, TimeMs now) { expires_ = now + ttl_ms; }

  // One change. REQUIRES: the caller has checked the fence, as every script does first.
  StoreDone apply(const StoreOp& op);

  int64_t fence() const { return fence_; }
  const std::map<std::string, SearchRecord>& searches() const { return searches_; }
  const SearchRecord* find(const std::string& search) const;
  const std::string* result(const std::string& search, const UnitId& unit) const;
  // As RedisStore::load() finds it: `results` filled.
  std::vector<SearchRecord> load() const;

  // For mutants.
  void overwrite(const std::string& search, const UnitId& unit, const std::string* packed);

 private:
  StoreDone::Outcome on(const PutSearch& change);
  StoreDone::Outcome on(const PutStatus& change);
  StoreDone::Outcome on(const PutLease& change);
  StoreDone::Outcome on(const DropLease& change);
  StoreDone::Outcome on(const PutResult& change);
  StoreDone::Outcome on(const DeleteSearch& change);
  StoreDone::Outcome on(const PutFailure& change);
  StoreDone::Outcome on(const ClearFailures& change);

  int64_t fence_ = 0;
  TimeMs expires_ = 0;
  int64_t connection_ = 0;                        // the latest that wrote
  std::map<std::string, SearchRecord> searches_;  // without results
  std::map<std::string, std::map<UnitId, std::string>> results_;
};

}  // namespace bitalloc::sim
