// The real service in a temporary folder: redis-server and bitalloc-coordinator as child processes,
// a feeder that keeps units waiting, and a client that asks and watches all the time.
//
// Thread rule: one thread; Feeder and Prober have threads of their own.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "coordinator/redis_connection.h"
#include "ops/bench/service/latencies.h"
#include "ops/bench/service/load_search.h"
#include "tests/process/fake_worker_service.h"

namespace bitalloc::bench {

class Service {
 public:
  explicit Service(std::string coordinator) : coordinator_program_(std::move(coordinator)) {}
  // Both are up, or the reason why not.
  Status start();
  // kill -9 of the coordinator, and another one in its place.
  Status restart_coordinator();
  // The folder, its sockets and its logs.
  const testing::TempDir& dir() const { return dir_; }
  pid_t redis_pid() const { return redis_.pid(); }
  pid_t coordinator_pid() const { return coordinator_.pid(); }
  RedisAddress redis_address() const;

 private:
  Status start_coordinator(bool take_over);

  const std::string coordinator_program_;
  testing::TempDir dir_;
  testing::Child redis_;
  testing::Child coordinator_;
};

// Submits the search under new ids whenever fewer than `ahead` units are left to acknowledge.
class Feeder {
 public:
  // `dir` and `search` outlive this object.
  Feeder(const testing::TempDir& dir, const LoadSearch& search,
         std::function<int64_t()> acknowledged, int64_t ahead);
  ~Feeder();
  int64_t searches() const { return searches_; }
  std::string last_id() const;
  // An error that ended it.
  std::string failure() const;

  static std::string id_of(int64_t index);

 private:
  void run();

  const testing::TempDir& dir_;
  const LoadSearch& search_;
  const std::function<int64_t()> acknowledged_;
  const int64_t ahead_;
  std::atomic<int64_t> searches_{0};
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::string failure_;  // guarded
  std::thread thread_;
};

// A client that asks `status` of the newest search 50 times a second, and one that watches it.
class Prober {
 public:
  Prober(const testing::TempDir& dir, const Feeder& feeder);  // both outlive this object
  ~Prober();
  Json take_status_latencies() { return status_ms_.take(); }
  // Between the events of a watch.
  Json take_watch_gaps() { return watch_gap_ms_.take(); }

 private:
  void ask();
  void watch();

  const testing::TempDir& dir_;
  const Feeder& feeder_;
  Latencies status_ms_;
  Latencies watch_gap_ms_;
  std::atomic<bool> stop_{false};
  std::thread asking_;
  std::thread watching_;
};

}  // namespace bitalloc::bench
