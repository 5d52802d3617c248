// What one unit costs the scheduler: the CPU time of Queue::handle over a unit's whole life (ready
// and grant, the lease's StoreDone, heartbeats, the result, its StoreDone) and the memory it takes,
// for searches of a thousand to a million units. Prints a table; --csv writes the curve.
//
// No socket, store or worker: events are made beforehand, and only handle() is on the clock, by the
// thread's CPU time, so that a busy machine does not matter much.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>

#include "coordinator/queue.h"

namespace bitalloc {
namespace {

constexpr int kCredits = 2;
constexpr TimeMs kRoundMs = 1'000;  // a unit's time: each worker sends a heartbeat meanwhile

double cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

double heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

// 50 sites × 2 candidates, a sequence a batch: `units` of one site each, to the next 50.
SearchSpec spec_of(int number, int64_t units) {
  constexpr int kSites = 50;
  SearchSpec spec;
  spec.model = {"/models/m", "m", "llama", "weights", "config", kSites, 32'000};
  for (int i = 0; i < kSites; ++i) spec.sites.push_back({fmt::format("layers.{}", i), i, 64, 64});
  spec.candidates = {*parse_candidate("fp8"), *parse_candidate("nvfp4")};
  spec.sequences = std::max<int64_t>(1, units / kSites);
  spec.length = 512;
  spec.tokens_sha256 = fmt::format("tokens {}", number);
  return spec;
}

struct Measured {
  int64_t units = 0;
  double handle_us = 0;      // a unit, over its life
  double setup_us = 0;       // a unit, when its search comes
  double bytes_planned = 0;  // a unit, before it is done
  double bytes_done = 0;     // a unit, its result included
};

class Run {
 public:
  Run(int searches, int workers, int64_t units) : workers_(workers) {
    const double before = heap_bytes();
    for (int i = 0; i < searches; ++i) {
      const SearchSpec spec = spec_of(i, units / searches);
      total_ += static_cast<int64_t>(PlanLayout(spec).num_units());
      event::Submit submit;
      submit.record.id = fmt::format("search-{}", i);
      submit.record.spec = spec;
      submit.record.fingerprint = fingerprint(spec);
      submit.tokens = std::make_shared<SearchTokens>();
      handle({std::move(submit)});
    }
    store();
    measured_.setup_us = spent_us_ / static_cast<double>(total_);
    measured_.bytes_planned = (heap_bytes() - before) / static_cast<double>(total_);
    std::vector<Event> hellos;
    for (int i = 0; i < workers; ++i) {
      hellos.push_back(event::WorkerHello{epoch(i), Json::object()});
    }
    handle(std::move(hellos));
    spent_us_ = 0;
    while (done_ < total_) round();
    measured_.units = total_;
    measured_.handle_us = spent_us_ / static_cast<double>(total_);
    measured_.bytes_done = (heap_bytes() - before) / static_cast<double>(total_);
  }
  const Measured& measured() const { return measured_; }

 private:
  static WorkerEpoch epoch(int i) {
    return WorkerEpoch(fmt::format("host-{:04}-4711-c0ffee00", i));
  }

  // Each worker asks for units, says that it lives, and delivers them.
  void round() {
    std::vector<Event> events;
    for (int i = 0; i < workers_; ++i) events.push_back(event::WorkerReady{epoch(i), kCredits});
    handle(std::move(events));
    store();
    now_ += kRoundMs;
    events.clear();
    for (int i = 0; i < 10; ++i) events.push_back(event::Tick{});
    for (int i = 0; i < workers_; ++i) {
      event::WorkerHeartbeat beat{epoch(i), {}};
      for (const auto& unit : sent_[epoch(i).value]) {
        beat.units.push_back({unit.search, unit.unit, unit.fence});
      }
      events.push_back(std::move(beat));
    }
    handle(std::move(events));
    events.clear();
    for (const auto& [worker, units] : sent_) {
      for (const auto& unit : units) events.push_back(result_of(unit));
    }
    done_ += static_cast<int64_t>(events.size());
    sent_.clear();
    handle(std::move(events));
    store();
  }

  static event::WorkerResult result_of(const action::SendUnit& unit) {
    UnitResult result;
    result.unit = unit.unit;
    result.sums = {0.25, 0.5};
    result.tokens = {512};
    return {unit.worker, unit.search, unit.fence, 0.5, "c", std::move(result)};
  }

  // Everything that was persisted becomes durable.
  void store() {
    while (!ops_.empty()) {
      std::vector<Event> events;
      for (const StoreOp& op : std::exchange(ops_, {})) {
        events.push_back(StoreDone{op.token, StoreDone::Outcome::kNew, ""});
      }
      handle(std::move(events));
    }
  }

  // In groups that are too small to push the queue out of the caches, as actions that are kept
  // would, and too large for reading the clock to matter.
  void handle(std::vector<Event> events) {
    constexpr size_t kGroup = 32;
    std::array<Actions, kGroup> actions;
    for (size_t begin = 0; begin < events.size(); begin += kGroup) {
      const size_t end = std::min(begin + kGroup, events.size());
      const double start = cpu_us();
      for (size_t i = begin; i < end; ++i) actions[i - begin] = queue_.handle(events[i], now_);
      spent_us_ += cpu_us() - start;
      for (size_t i = begin; i < end; ++i) {
        for (Action& action : actions[i - begin]) take(action);
      }
    }
  }

  void take(Action& action) {
    if (auto* persist = std::get_if<action::Persist>(&action)) {
      ops_.push_back(std::move(persist->op));
    } else if (const auto* unit = std::get_if<action::SendUnit>(&action)) {
      sent_[unit->worker.value].push_back(*unit);
    }
  }

  const int workers_;
  Queue queue_;
  TimeMs now_ = 0;
  std::vector<StoreOp> ops_;
  std::map<std::string, std::vector<action::SendUnit>> sent_;
  int64_t total_ = 0;
  int64_t done_ = 0;
  double spent_us_ = 0;
  Measured measured_;
};

void bench(const std::string& csv_file, int64_t largest) {
  std::string csv =
      "searches,workers,units,handle_us_per_unit,setup_us_per_unit,"
      "bytes_per_planned_unit,bytes_per_done_unit\n";
  fmt::print("{:>8} {:>8} {:>9} {:>12} {:>11} {:>13} {:>11}\n", "searches", "workers", "units",
             "us/unit life", "us/unit new", "bytes/planned", "bytes/done");
  for (const auto& [searches, workers] : {std::pair(1, 8), {20, 1'000}}) {
    for (int64_t units = 1'000; units <= largest; units *= 10) {
      const Measured m = Run(searches, workers, units).measured();
      fmt::print("{:>8} {:>8} {:>9} {:>12.2f} {:>11.3f} {:>13.0f} {:>11.0f}\n", searches, workers,
                 m.units, m.handle_us, m.setup_us, m.bytes_planned, m.bytes_done);
      std::fflush(stdout);
      csv += fmt::format("{},{},{},{:.3f},{:.4f},{:.1f},{:.1f}\n", searches, workers, m.units,
                         m.handle_us, m.setup_us, m.bytes_planned, m.bytes_done);
    }
  }
  if (csv_file.empty()) return;
  std::FILE* file = std::fopen(csv_file.c_str(), "w");
  if (file == nullptr) {
    fmt::print(stderr, "cannot write {}\n", csv_file);
    return;
  }
  std::fputs(csv.c_str(), file);
  std::fclose(file);
}

}  // namespace
}  // namespace bitalloc

int main(int argc, char** argv) {
  std::string csv;
  int64_t largest = 1'000'000;
  CLI::App app{"What a unit costs the scheduler: CPU time and memory.", "scheduler_bench"};
  app.add_option("--csv", csv, "write the curve to this file");
  app.add_option("--largest", largest, "units of the largest run")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  bitalloc::bench(csv, largest);
  return 0;
}
