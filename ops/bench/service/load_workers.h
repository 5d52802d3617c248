// Many workers in one thread that speak the real protocol (wire.h) and compute nothing: a DEALER
// each, hello, credits, heartbeats, results that are sent again until they are acknowledged. The
// bench would measure itself if it parsed what it does not need, so only the named fields of a
// unit's header are read, at the places where JSON dumps put them.
//
// Thread rule: construct, call and destroy on one thread; the workers live on another.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/bench/service/latencies.h"
#include "ops/bench/service/load_search.h"

namespace bitalloc::bench {

struct LoadWorkersOptions {
  std::string endpoint;
  int workers = 64;
  int credits = 8;      // units that a worker holds at most
  bool record = false;  // remember which units were acknowledged
};

class LoadWorkers {
 public:
  // `search` outlives this object.
  LoadWorkers(LoadWorkersOptions options, const LoadSearch& search);
  ~LoadWorkers();

  // Closed loop: a result goes out as soon as its unit is there.
  void saturate() { rate_ = kSaturate; }
  // Open loop: so many results a second, evenly spaced, whatever the answers. Latency counts from
  // when a result was due, so a stall is felt by all results that fell into it.
  void pace(double results_per_second) { rate_ = results_per_second; }
  // Units are kept and no results sent.
  void hold() { rate_ = 0; }

  int64_t acknowledged() const { return acknowledged_; }
  int64_t in_hand() const { return in_hand_count_; }
  // Results that were due when no unit was at hand.
  int64_t starved() const { return starved_; }
  // Units that came again after their acknowledgement (only with `record`).
  int64_t granted_again() const { return granted_again_; }
  Json take_ack_latencies() { return ack_ms_.take(); }
  Json take_heartbeat_latencies() { return heartbeat_ms_.take(); }
  using UnitKey = std::pair<std::string, std::string>;  // search, unit
  std::set<UnitKey> acknowledged_units() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kSaturate = -1;
  struct Worker {
    void* socket = nullptr;
    std::string epoch;
    int busy = 0;           // units without a result yet
    bool has_sent = false;  // since its last receive
    Clock::time_point next_heartbeat;
    Clock::time_point heartbeat_sent;
  };
  struct Unit {
    size_t worker = 0;
    std::string search;
    std::string name;
    std::string fence;
  };
  struct Sent {  // a result without its acknowledgement
    Unit unit;
    Clock::time_point due;
    Clock::time_point last_sent;
  };

  void run();
  void connect();
  void receive_after_sending();
  void receive_from(size_t worker);
  void handle(size_t worker, const std::vector<std::string_view>& frames);
  void on_unit(size_t worker, std::string_view header);
  void on_ack(std::string_view correlation_id);
  void on_revoke(size_t worker, std::string_view header);
  void say_hello(Worker& worker);
  void say_ready(Worker& worker);
  void send_results(Clock::time_point now);
  void send_result(Unit unit, Clock::time_point due);
  void transmit(uint64_t id, Sent& sent);
  void send_again(Clock::time_point sent_before, size_t worker);
  void heartbeats(Clock::time_point now);
  void send(Worker& worker, std::string_view type, std::string_view correlation_id,
            std::string_view header, const std::string* blob = nullptr);

  const LoadWorkersOptions options_;
  const LoadSearch& search_;
  std::unordered_map<std::string, std::string> results_;  // by unit: as every worker would send it
  void* context_;
  int epoll_ = -1;
  std::vector<Worker> workers_;
  std::deque<Unit> in_hand_;
  std::unordered_map<uint64_t, Sent> sent_;
  uint64_t next_id_ = 1;
  Clock::time_point next_due_;
  Clock::time_point next_sweep_;
  double paced_ = 0;     // the rate that next_due_ belongs to
  int64_t overdue_ = 0;  // results that wait for a unit

  std::atomic<double> rate_{0};
  std::atomic<int64_t> acknowledged_{0};
  std::atomic<int64_t> in_hand_count_{0};
  std::atomic<int64_t> starved_{0};
  std::atomic<int64_t> granted_again_{0};
  std::atomic<bool> stop_{false};
  Latencies ack_ms_;
  Latencies heartbeat_ms_;
  mutable std::mutex mutex_;
  std::set<UnitKey> acknowledged_units_;  // guarded
  std::thread thread_;
};

}  // namespace bitalloc::bench
