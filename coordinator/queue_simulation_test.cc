// The production state machine under a seeded storm: messages to and from workers are lost, doubled
// and reordered, workers die, the store answers late, and the coordinator crashes and comes back
// from what was durable. For every seed: each unit is written once, an ack implies a durable
// result, a unit is sent only under a durable lease, the search ends, and its table is the one of a
// run without faults. A failure prints the seed; BITALLOC_SEED=n replays it alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "coordinator/queue.h"

namespace bitalloc {
namespace {

SearchSpec storm_spec(int rows, int sequences) {
  SearchSpec spec;
  spec.model = {"/models/m", "m", "llama", "w", "c", rows, 100};
  for (int i = 0; i < rows; ++i) spec.sites.push_back({fmt::format("layers.{}", i), i, 64, 64});
  spec.candidates = {*parse_candidate("fp8[scale=calibrated]"), *parse_candidate("nvfp4")};
  spec.sequences = sequences;
  spec.length = 4;
  spec.batch_sequences = 2;
  spec.tokens_sha256 = "t";
  spec.calibration_sequences = 3;
  spec.calibration_length = 4;
  spec.calibration_sha256 = "ct";
  return spec;
}

UnitResult result_of(const SearchSpec& spec, const UnitId& unit) {
  UnitResult result;
  result.unit = unit;
  const double value = 1.0 / static_cast<double>(3 + unit.batch.value * 100 + unit.row_begin);
  if (unit.kind == UnitKind::kCalibrate) {
    result.amax.assign(2 * spec.sites.size(), static_cast<float>(value));
    return result;
  }
  const int64_t sequences = spec.batch_size(unit.batch);
  result.sums.assign((unit.row_end - unit.row_begin) * spec.num_columns() * sequences, value);
  result.tokens.assign(sequences, 4);
  return result;
}

// The store's promises, as Redis keeps them (redis_scripts.h), in memory.
struct Disk {
  std::map<std::string, SearchRecord> searches;
  std::map<UnitId, int> writes;  // how often a unit's result was new

  StoreDone::Outcome apply(const StoreOp& op) {
    if (const auto* c = std::get_if<PutSearch>(&op.change)) {
      const auto [entry, is_new] = searches.try_emplace(c->record.id, c->record);
      entry->second.status = c->record.status;
      entry->second.has_tokens |= c->tokens != nullptr;
    } else if (const auto* c = std::get_if<PutStatus>(&op.change)) {
      searches.at(c->search).status = c->status;
    } else if (const auto* c = std::get_if<PutLease>(&op.change)) {
      SearchRecord& record = searches.at(c->search);
      record.fence = std::max(record.fence, c->lease.fence);
      record.leases[c->unit] = c->lease;
    } else if (const auto* c = std::get_if<DropLease>(&op.change)) {
      auto& leases = searches.at(c->search).leases;
      if (leases.contains(c->unit) && leases[c->unit].fence <= c->fence) leases.erase(c->unit);
    } else if (const auto* c = std::get_if<PutResult>(&op.change)) {
      SearchRecord& record = searches.at(c->search);
      record.leases.erase(c->unit);
      for (const UnitResult& result : record.results) {
        if (result.unit == c->unit) return StoreDone::Outcome::kDuplicate;
      }
      ++writes[c->unit];
      record.results.push_back(*unpack_unit_result(c->unit, c->packed));
    }
    return StoreDone::Outcome::kNew;
  }
  bool has(const std::string& search, const UnitId& unit) const {
    const auto& results = searches.at(search).results;
    return std::any_of(results.begin(), results.end(),
                       [&](const UnitResult& r) { return r.unit == unit; });
  }
};

struct SimWorker {
  struct Held {
    std::string search;
    UnitId unit;
    Fence fence;
    TimeMs due = 0;
    bool finished = false;
  };
  WorkerEpoch epoch;
  std::vector<Held> held;
  TimeMs next_beat = 0;
  bool known = false;  // has said hello to this coordinator
};

class Storm {
 public:
  explicit Storm(uint64_t seed) : random_(seed), spec_(storm_spec(3 + chance(6), 3 + chance(8))) {
    for (int i = 0; i < 1 + chance(4); ++i) new_worker();
  }

  void run() {
    submit();
    const TimeMs calm = 60'000 + chance(60'000);  // afterwards only the ordinary losses
    for (; now_ < 3'600'000 && !finished(); now_ += 50) {
      if (now_ < calm && chance(80) == 0) crash_coordinator();
      if (now_ < calm && chance(120) == 0) kill_worker();
      step_store();
      step_workers();
      step_network();
      handle(event::Tick{});
      if (disk_.searches.empty() && to_store_.empty()) submit();  // its answer was lost: again
    }
    check_end();
  }

 private:
  int chance(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool lost() { return chance(20) == 0; }

  bool finished() const {
    const auto found = disk_.searches.find("s");
    return found != disk_.searches.end() && has_ended(found->second.status.state);
  }

  void submit() {
    event::Submit event;
    event.record.id = "s";
    event.record.spec = spec_;
    event.record.fingerprint = fingerprint(spec_);
    event.tokens = std::make_shared<SearchTokens>();
    handle(std::move(event));
  }

  void new_worker() {
    SimWorker worker;
    worker.epoch = WorkerEpoch(fmt::format("w{}", next_epoch_++));
    workers_.push_back(std::move(worker));
  }

  void kill_worker() {
    workers_.erase(workers_.begin() + chance(static_cast<int>(workers_.size())));
    new_worker();
  }

  // Memory is gone; of what was put, some is durable without anybody having been told.
  void crash_coordinator() {
    for (int n = chance(4); n > 0 && !to_store_.empty(); --n) {
      disk_.apply(to_store_.front());
      to_store_.pop_front();
    }
    to_store_.clear();
    queue_ = Queue();
    for (SimWorker& worker : workers_) worker.known = false;
    for (const auto& [id, record] : disk_.searches) handle(event::SearchLoaded{record});
  }

  void step_store() {
    for (int n = chance(5); n > 0 && !to_store_.empty(); --n) {
      const StoreOp op = std::move(to_store_.front());
      to_store_.pop_front();
      const auto outcome = disk_.apply(op);
      handle(StoreDone{op.token, outcome, ""});
    }
  }

  // Messages to the coordinator: lost, doubled or late.
  void say(Event event) {
    if (lost()) return;
    if (chance(20) == 0) to_coordinator_.push_back(event);
    to_coordinator_.push_back(std::move(event));
  }

  void step_network() {
    for (int n = chance(8); n > 0 && !to_coordinator_.empty(); --n) {
      const int at = chance(static_cast<int>(std::min<size_t>(3, to_coordinator_.size())));
      const Event event = to_coordinator_[at];
      to_coordinator_.erase(to_coordinator_.begin() + at);
      handle(event);
    }
  }

  void step_workers() {
    for (SimWorker& worker : workers_) {
      for (auto& held : worker.held) {
        if (now_ < held.due) continue;
        held.finished = true;
        held.due = now_ + 5'000;
        say(event::WorkerResult{worker.epoch, held.search, held.fence, 0.1, "",
                                result_of(spec_, held.unit)});
      }
      if (now_ < worker.next_beat) continue;
      worker.next_beat = now_ + 1'000;
      if (!worker.known) say(event::WorkerHello{worker.epoch, Json::object()});
      worker.known = true;
      event::WorkerHeartbeat beat{worker.epoch, {}};
      for (const auto& held : worker.held) {
        beat.units.push_back({held.search, held.unit, held.fence});
      }
      say(std::move(beat));
      const auto busy = std::count_if(worker.held.begin(), worker.held.end(),
                                      [](const auto& held) { return !held.finished; });
      say(event::WorkerReady{worker.epoch, std::max<int64_t>(0, 2 - busy)});
    }
  }

  template <typename E>
  void handle(E event) {
    // As the front does: who is not known is told so, and says hello again.
    if constexpr (std::is_same_v<E, Event>) {
      if (const auto* beat = std::get_if<event::WorkerHeartbeat>(&event)) {
        SimWorker* worker = find(beat->worker);
        if (worker != nullptr && !queue_.workers().contains(beat->worker)) worker->known = false;
      }
    }
    for (Action& action : queue_.handle(event, now_)) perform(action);
  }

  SimWorker* find(const WorkerEpoch& epoch) {
    for (SimWorker& worker : workers_) {
      if (worker.epoch == epoch) return &worker;
    }
    return nullptr;
  }

  void perform(Action& action) {
    if (auto* a = std::get_if<action::Persist>(&action)) {
      to_store_.push_back(std::move(a->op));
    } else if (const auto* a = std::get_if<action::WriteCheckpoint>(&action)) {
      to_coordinator_.push_back(event::CheckpointWritten{a->search});
    } else if (const auto* a = std::get_if<action::SendUnit>(&action)) {
      const auto& leases = disk_.searches.at(a->search).leases;
      const auto lease = leases.find(a->unit);
      EXPECT_TRUE(lease != leases.end() && lease->second.fence == a->fence) << "not durable";
      EXPECT_FALSE(disk_.has(a->search, a->unit)) << unit_name(a->unit) << " is done already";
      SimWorker* worker = find(a->worker);
      if (worker == nullptr || lost()) return;
      std::erase_if(worker->held, [&](const auto& held) { return held.unit == a->unit; });
      worker->held.push_back({a->search, a->unit, a->fence, now_ + 100 + chance(3'000), false});
    } else if (const auto* a = std::get_if<action::SendAck>(&action)) {
      EXPECT_TRUE(disk_.has(a->search, a->unit)) << unit_name(a->unit) << " acked, not durable";
      drop(a->worker, a->unit);
    } else if (const auto* a = std::get_if<action::SendRevoke>(&action)) {
      drop(a->worker, a->unit);
    } else if (const auto* a = std::get_if<action::Log>(&action)) {
      EXPECT_FALSE(a->defect) << a->text;
    }
  }

  void drop(const WorkerEpoch& epoch, const UnitId& unit) {
    SimWorker* worker = find(epoch);
    if (worker == nullptr || lost()) return;
    std::erase_if(worker->held, [&](const auto& held) { return held.unit == unit; });
  }

  void check_end() {
    ASSERT_TRUE(finished()) << "the search did not end in an hour";
    const SearchRecord& record = disk_.searches.at("s");
    EXPECT_EQ(record.status.state, SearchState::kDone);
    ScoreTable table(spec_);
    for (const UnitResult& result : record.results) {
      EXPECT_EQ(table.add(result), ScoreTable::Added::kNew);
    }
    EXPECT_TRUE(table.complete());
    for (const UnitId& unit : table.units()) {
      EXPECT_EQ(disk_.writes[unit], 1) << unit_name(unit);
      EXPECT_EQ(pack(table.result(unit)), pack(result_of(spec_, unit)));
    }
  }

  std::mt19937_64 random_;
  SearchSpec spec_;
  Queue queue_;
  Disk disk_;
  TimeMs now_ = 0;
  int next_epoch_ = 0;
  std::vector<SimWorker> workers_;
  std::deque<StoreOp> to_store_;
  std::deque<Event> to_coordinator_;
};

TEST(QueueSimulation, EverySeedEndsWithEveryUnitCountedOnce) {
  const char* only = std::getenv("BITALLOC_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : 300;
  for (uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("replay with BITALLOC_SEED={}", seed));
    Storm(seed).run();
  }
}

}  // namespace
}  // namespace bitalloc
