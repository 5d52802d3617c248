// The coordinator's mind: searches, workers, leases and what to do next, as a pure state machine.
//
// handle(event, now) changes the state and returns actions. There is no clock, socket, thread,
// store or random number inside, and every container iterates in one order: the same events at the
// same times give the same actions, so a simulator can drive this code through lost, late and
// doubled messages and through crashes (a crash keeps only what was persisted).
//
// handle() takes a time that does not grow with the number of units, except once a search, when it
// comes or its calibration is complete.
//
// Promises:
// - A unit counts once. A result is counted when the store has it; the first write stays, a later
//   equal one is acknowledged again, a later different one is a defect: logged, never added.
// - SendAck follows StoreDone of that result. SendUnit follows StoreDone of its lease.
// - A pending unit is derived (plan − results − leases − failures); nothing else says what is to be
//   done.
// - A result with an old fence, or of a worker nobody knows, is taken as the first write when there
//   is none yet: scores are deterministic, so who computed them does not matter.
// - A result of a worker that says another numerics version than the search's is never taken.
// - Nothing is granted while the store is lost or after Stop.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/open_units.h"
#include "coordinator/retry_pool.h"
#include "coordinator/store.h"
#include "coordinator/turns.h"

namespace bitalloc {

using TimeMs = int64_t;  // of the caller's steady clock

struct QueueOptions {
  TimeMs lease_ms = 30'000;         // a unit not heard of for so long is somebody else's
  TimeMs liveness_ms = 5'000;       // a worker not heard of for so long is gone
  TimeMs restart_grace_ms = 5'000;  // stored leases live so long until their worker is heard
  // A unit that was sent, but that its worker does not list in so many heartbeats in so long a time
  // (so neither late heartbeats nor a stall of ours count as that): a message was lost.
  int lost_heartbeats = 3;
  TimeMs lost_ms = 3'000;
  TimeMs stall_ms = 1'000;  // a longer pause between ticks was ours, not the workers'

  TimeMs backoff_ms = 1'000;           // rest of a unit after its first failure; doubles …
  TimeMs largest_backoff_ms = 60'000;  // … up to this
  TimeMs prefer_other_ms = 30'000;  // a rested unit waits so long for a worker it did not fail on
  int max_attempts = 3;             // failures of one unit until it is set aside
  int max_losses = 10;              // workers that vanished with one unit until it is set aside
  int hopeless_units = 8;           // units set aside, and none ever done: the search is given up

  // A second lease of a unit, when a worker is free and no unit is open for it.
  double straggler_factor = 2;      // of the time that such a unit takes
  TimeMs straggler_min_ms = 2'000;  // never sooner
  int64_t straggler_samples = 3;    // units of the search that were measured before
  size_t max_speculative = 64;      // second leases at once, of all searches together

  // A worker leaves its model for a search of the same level only when that search has got so many
  // worker-seconds (by its share) less than the one of the worker's model.
  double model_switch_seconds = 60;

  size_t max_leases = 4'096;  // of all searches together
  size_t max_workers = 1'024;
  size_t max_searches = 10'000;
};

namespace event {

// At the start, before anything else: a search as the store has it.
struct SearchLoaded {
  SearchRecord record;
};
// A new search, an old one submitted again, or an import (record.results, no tokens). `request`
// comes back in a Reply action when the change is durable.
struct Submit {
  uint64_t request = 0;
  SearchRecord record;
  SharedTokens tokens;
};
struct Change {
  enum class Kind { kPause, kResume, kCancel, kReprioritize };
  uint64_t request = 0;
  std::string search;
  Kind kind = Kind::kPause;
  int64_t priority = 0;
};
struct Delete {
  uint64_t request = 0;
  std::string search;
};

struct WorkerHello {
  WorkerEpoch worker;
  // The header of `hello`. The queue reads `models`, `memory_bytes` and `numerics_version`; a
  // worker that does not say the last is taken to have ours.
  Json info;
};
struct WorkerReady {
  WorkerEpoch worker;
  int64_t credits = 0;
  std::optional<std::vector<std::string>> models = std::nullopt;  // weights_sha256 it holds now
};
struct WorkerHeartbeat {
  struct Held {
    std::string search;
    UnitId unit;
    Fence fence;
  };
  WorkerEpoch worker;
  std::vector<Held> units;
  std::optional<std::vector<std::string>> models = std::nullopt;  // weights_sha256 it holds now
};
struct WorkerResult {
  WorkerEpoch worker;
  std::string search;
  Fence fence;
  double seconds = 0;
  std::string correlation_id;
  UnitResult result;
  std::optional<int64_t> numerics_version = std::nullopt;  // it was computed with, if said
};
struct WorkerFail {
  WorkerEpoch worker;
  std::string search;
  UnitId unit;
  Fence fence;
  Error error;
  bool retryable = false;
};
struct WorkerGiveBack {  // it has not begun the unit, and will not
  WorkerEpoch worker;
  std::string search;
  UnitId unit;
  Fence fence;
};
struct WorkerBye {
  WorkerEpoch worker;
};

struct CheckpointWritten {
  std::string search;
};
struct Tick {};  // a few times a second
struct Stop {};  // grant nothing any more

}  // namespace event

using Event = std::variant<event::SearchLoaded, event::Submit, event::Change, event::Delete,
                           event::WorkerHello, event::WorkerReady, event::WorkerHeartbeat,
                           event::WorkerResult, event::WorkerFail, event::WorkerGiveBack,
                           event::WorkerBye, StoreDone, StoreLost, StoreBack,
                           event::CheckpointWritten, event::Tick, event::Stop>;

namespace action {

struct Persist {
  StoreOp op;
};
struct SendUnit {
  WorkerEpoch worker;
  std::string search;
  UnitId unit;
  Fence fence;
  TimeMs lease_ms = 0;
};
struct SendAck {
  WorkerEpoch worker;
  std::string search;
  UnitId unit;
  Fence fence;
  std::string correlation_id;
};
struct SendReject {  // the result cannot be taken; sending it again is no use
  WorkerEpoch worker;
  std::string search;
  UnitId unit;
  Fence fence;
  std::string correlation_id;
  Error error;
};
struct SendRevoke {
  WorkerEpoch worker;
  std::string search;
  UnitId unit;
  Fence fence;
};
struct WriteCheckpoint {  // then CheckpointWritten, whether it worked or not
  std::string search;
};
struct Publish {  // the status of the search has changed
  std::string search;
};
struct Forget {  // tokens of the search are not needed any more
  std::string search;
};
struct ReplyStatus {
  uint64_t request = 0;
  std::string search;
  bool created = false;
};
struct ReplyDeleted {
  uint64_t request = 0;
  std::string search;
};
struct ReplyError {
  uint64_t request = 0;
  Error error;
};
struct Log {
  bool defect = false;
  std::string text;
};

}  // namespace action

using Action =
    std::variant<action::Persist, action::SendUnit, action::SendAck, action::SendReject,
                 action::SendRevoke, action::WriteCheckpoint, action::Publish, action::Forget,
                 action::ReplyStatus, action::ReplyDeleted, action::ReplyError, action::Log>;
using Actions = std::vector<Action>;

// Seconds that units took, by their size: for the ETA, fair shares and stragglers.
struct Timing {
  int64_t count = 0;
  double seconds = 0;
  double weight = 0;  // Σ unit_weight

  void add(double unit_seconds, double unit_weight);
};

// Layer passes that a unit costs, for proportions only: a trial at row r of a search runs the
// layers above r.
double unit_weight(const UnitId& unit, const SearchSpec& spec);

// To the last bit.
bool same_values(const UnitResult& a, const UnitResult& b);

struct HeldLease {
  WorkerEpoch worker;
  Fence fence;
  TimeMs deadline = 0;
  bool restored = false;     // of an earlier coordinator, and its worker has not confirmed it yet
  bool speculative = false;  // the second of a straggling unit
  std::optional<TimeMs> listed = {};  // by its worker, last; or when the unit was sent
  int heartbeats_without = 0;         // since then
  TimeMs granted = 0;                 // or first heard of
  int64_t place = 1;                  // units that its worker held then, this one included
  double charged_seconds = 0;         // to the search's turn
  TimeMs alarm = 0;                   // its entry among the queue's alarms, never after `deadline`
};

// One a unit, so a byte: what else there is to say of few of them stands in the maps of Search.
enum class UnitPhase : uint8_t {
  kOpen,      // nobody's; when it has failed before: to be retried now
  kResting,   // failed, until its back-off is over
  kLeased,    // by one worker or two
  kStoring,   // its result is on its way to the store
  kDone,      // the table has its result
  kSetAside,  // given up until somebody asks for new attempts
};

struct UnitTrouble {
  UnitFailure failure;
  TimeMs not_before = 0;
  bool hopeless = false;         // no retry would help
  int64_t more_than_bytes = -1;  // of memory that a worker should have; −1: any
  RetryPool::Group group() const { return {more_than_bytes, failure.worker}; }
};

struct Search {
  explicit Search(const SearchRecord& record);  // without its results, leases and failures

  std::string id;
  SearchSpec spec;
  Fingerprint fingerprint;
  int64_t numerics_version = 0;
  int64_t created_unix = 0;
  SearchStatus status;
  Fence fence;
  bool has_tokens = false;
  bool finishing = false;     // complete; the checkpoint and the state `done` are being written
  bool done_is_sent = false;  // the state `done` is on its way to the store, or there
  ScoreTable table;
  PlanLayout layout;
  size_t calibrations_left = 0;    // units; scores wait for them
  std::set<WorkerEpoch> excluded;  // workers that see another model
  std::optional<Error> exclusion;  // what the last of them said
  TimeMs exclusion_time = 0;       // and when
  Timing timing;
  double weight_left = 0;  // Σ unit_weight of the units that are not done
  int64_t leased = 0;      // units
  int64_t storing = 0;
  int64_t conflicts = 0;   // results that differed from the stored one
  int64_t speculated = 0;  // second leases given to stragglers
  Turn turn;

  // By slot, the unit's place in table.units().
  std::vector<UnitPhase> phases;
  std::map<size_t, std::vector<HeldLease>> leases;  // of kLeased units
  std::map<size_t, UnitTrouble> troubles;           // of units that are not done
  std::map<size_t, uint64_t> storing_tokens;        // of kStoring units
  std::set<size_t> resting;
  std::set<size_t> set_aside;
  OpenUnits fresh;    // kOpen, never failed, and its turn has come: scores wait for calibration
  RetryPool retries;  // kOpen, failed before

  std::optional<size_t> slot(const UnitId& unit) const { return layout.slot(unit); }
  const UnitId& unit(size_t slot) const { return table.units()[slot]; }
  double weight(size_t slot) const { return unit_weight(unit(slot), spec); }
  const std::string& model() const { return spec.model.weights_sha256; }
  void set_phase(size_t slot, UnitPhase phase);
  void count(size_t slot, const UnitResult& result);  // into the table; kDone
  void forgive(size_t slot);                          // as if it had never failed

  // What the store is told next. No later change may take back a `done` that is on its way.
  SearchStatus status_to_store() const;
  // Units that are neither done, nor on their way to the store, nor leased, nor set aside.
  int64_t open() const {
    return table.units_total() - table.units_done() - leased - storing - std::ssize(set_aside);
  }
  bool grants() const {  // units may be given out
    return has_tokens && !finishing &&
           (status.state == SearchState::kQueued || status.state == SearchState::kRunning);
  }
  // Units can be given out right now.
  bool has_open() const { return !fresh.empty() || !retries.empty(); }
  // Nothing is left to do but what is set aside (and what waits for it).
  bool is_exhausted() const {
    return !set_aside.empty() && !has_open() && leased == 0 && storing == 0 && resting.empty();
  }

 private:
  void leave_phase(size_t slot);
  void enter_phase(size_t slot);
};

struct Worker {
  Json info;
  TimeMs heard = 0;
  int64_t credits = 0;
  int64_t largest_credits = 0;      // ever claimed at once: what it can hold
  int64_t memory_bytes = 0;         // 0: it does not say
  int64_t numerics_version = 0;     // 0: it does not say
  std::vector<std::string> models;  // weights_sha256 that it says it holds
  std::string last_model;           // of the last unit it was given
  int64_t model_switches = 0;       // units given to it of another model than the one before
  std::string last_search;          // the batch whose reference it holds
  size_t last_batch = 0;            // PlanLayout's number
  int64_t units_done = 0;
  int64_t units_held = 0;  // as Queue::held() lists them
  TimeMs alarm = 0;        // its entry among the queue's liveness alarms

  // It can begin a unit of this model without loading it.
  bool holds(const std::string& model) const;
};

class Queue {
 public:
  explicit Queue(QueueOptions options = {});

  Actions handle(const Event& event, TimeMs now);

  Queue(Queue&&) = default;
  Queue& operator=(Queue&&) = default;

  // REQUIRES: valid until the next handle().
  const std::map<std::string, Search>& searches() const { return searches_; }
  const std::map<WorkerEpoch, Worker>& workers() const { return workers_; }
  const Search* find(const std::string& id) const;
  using UnitKey = std::pair<std::string, UnitId>;
  const std::map<WorkerEpoch, std::set<UnitKey>>& held() const { return held_; }
  // That were persisted and that the store has not answered yet.
  size_t unanswered_changes() const { return pending_.size(); }
  // Searches that have a unit to give out now, in the order in which they are served.
  const Turns& turns() const { return turns_; }
  // Workers by the memory they say they have.
  const std::map<int64_t, std::set<WorkerEpoch>>& by_memory() const { return by_memory_; }
  int64_t model_switches() const { return model_switches_; }  // of all workers ever
  bool store_lost() const { return store_lost_; }
  const std::string& store_reason() const { return store_reason_; }
  const QueueOptions& options() const { return options_; }

 private:
  struct Waiter {  // who gets an ack when the result is durable
    WorkerEpoch worker;
    Fence fence;
    std::string correlation_id;
  };
  struct ResultPending {
    std::string search;
    UnitResult result;
    std::vector<Waiter> waiters;
  };
  struct LeasePending {
    std::string search;
    UnitId unit;
    Lease lease;
    bool send = true;  // false: the worker has the unit already
  };
  struct StatusPending {
    std::string search;
    std::optional<uint64_t> request;
    bool done = false;  // the final status of a complete search: it becomes visible now
  };
  struct SearchPending {
    std::string search;
    std::vector<UnitResult> results;
    uint64_t request = 0;
    bool created = false;
  };
  struct DeletePending {
    std::string search;
    uint64_t request = 0;
  };
  using Pending = std::variant<std::monostate, ResultPending, LeasePending, StatusPending,
                               SearchPending, DeletePending>;

  void on(const event::SearchLoaded& event);
  void on(const event::Submit& event);
  void on(const event::Change& event);
  void on(const event::Delete& event);
  void on(const event::WorkerHello& event);
  void on(const event::WorkerReady& event);
  void on(const event::WorkerHeartbeat& event);
  void on(const event::WorkerResult& event);
  void on(const event::WorkerFail& event);
  void on(const event::WorkerGiveBack& event);
  void on(const event::WorkerBye& event);
  void on(const StoreDone& event);
  void on(const StoreLost& event);
  void on(const StoreBack& event);
  void on(const event::CheckpointWritten& event);
  void on(const event::Tick& event);
  void on(const event::Stop& event);

  void stored(const std::monostate&, const StoreDone&) {}
  void stored(ResultPending& pending, const StoreDone& event);
  void stored(const LeasePending& pending, const StoreDone& event);
  void stored(const StatusPending& pending, const StoreDone& event);
  void stored(const SearchPending& pending, const StoreDone& event);
  void stored(const DeletePending& pending, const StoreDone& event);

  // Searches (queue.cc).
  Search& place(Search search);
  void create(const event::Submit& event);
  void resubmit(Search& search, const event::Submit& event);
  Status acceptable(const Search& search, const event::Change& event) const;
  void forget_failures(Search& search);
  void fail_search(Search& search, Error error);
  void maybe_finish(Search& search);
  void persist_status(const Search& search, StatusPending pending);
  uint64_t persist(decltype(StoreOp::change) change, Pending pending);
  Search* find_mutable(const std::string& id);
  void report_conflict(Search& search, const UnitId& unit, const WorkerEpoch& worker);

  // Workers (queue_workers.cc).
  Worker* heard(const WorkerEpoch& epoch);
  void renew(const event::WorkerHeartbeat::Held& held, const WorkerEpoch& worker);
  void drop_unlisted(const WorkerEpoch& worker);
  bool is_lost(HeldLease& lease) const;
  Status acceptable(const Search& search, const event::WorkerResult& event, Worker* worker) const;
  void take_result(Search& search, size_t slot, const event::WorkerResult& event);
  void measure(Search& search, size_t slot, const event::WorkerResult& event);
  void exclude(Search& search, const WorkerEpoch& worker, const Error& error);
  void fail_if_all_excluded(Search& search);
  void remove_worker(const WorkerEpoch& epoch, bool vanished);
  void leave_batch(Worker& worker);
  void leave_memory(const WorkerEpoch& epoch, int64_t memory_bytes);
  void forgive_stall();
  void remove_silent_workers();

  // Leases and the fate of units (queue_leases.cc).
  void schedule();
  void speculate();
  const WorkerEpoch* helper_for(const Search& search, size_t slot) const;
  bool grant_one(const WorkerEpoch& epoch, Worker& worker, bool may_switch);
  void grant(Search& search, size_t slot, const WorkerEpoch& epoch, Worker& worker,
             bool speculative);
  void go_to_batch(Search& search, size_t slot, Worker& worker);
  void set_lease(Search& search, size_t slot, HeldLease lease, Worker* worker);
  HeldLease* lease_of(Search& search, size_t slot, const WorkerEpoch& worker);
  HeldLease clear_lease(Search& search, size_t slot, Fence fence);  // in memory
  void clear_leases(Search& search, size_t slot);                   // all of the unit, in memory
  void release(Search& search, size_t slot, Fence fence);           // and in the store
  void revoke_all(Search& search);
  void settle(Search& search, size_t slot);
  void unit_failed(Search& search, size_t slot, const HeldLease& lease, const Error& error,
                   bool retryable);
  void unit_lost(Search& search, size_t slot, const HeldLease& lease);
  void set_aside(Search& search, size_t slot);
  void move(Search& search, size_t slot, UnitPhase phase);
  void refresh(Search& search);
  void note_idle(const WorkerEpoch& epoch, const Worker& worker);
  void wake_rested();
  void expire_leases();
  double expected_seconds(const Search& search, size_t slot) const;
  bool is_straggler(const Search& search, size_t slot, const HeldLease& lease) const;

  template <typename A>
  void act(A action) {
    actions_.emplace_back(std::move(action));
  }

  // A lease that may have run out, or a unit (no fence) that has rested.
  struct Alarm {
    TimeMs when = 0;
    Search* search = nullptr;  // of searches_
    size_t slot = 0;
    Fence fence;
    bool operator<(const Alarm& other) const;
  };

  QueueOptions options_;
  std::map<std::string, Search> searches_;
  std::map<WorkerEpoch, Worker> workers_;
  std::map<WorkerEpoch, std::set<UnitKey>> held_;       // of workers known and unknown
  std::map<int64_t, std::set<WorkerEpoch>> by_memory_;  // no set is empty
  std::map<uint64_t, Pending> pending_;                 // by token
  Turns turns_;
  std::set<Alarm> lease_alarms_;  // one a lease
  std::set<Alarm> rest_alarms_;   // some of units that do not rest any more
  std::set<std::pair<TimeMs, WorkerEpoch>> liveness_alarms_;  // one a worker
  std::set<WorkerEpoch> idle_;                                // would take a unit
  std::set<WorkerEpoch> newly_idle_;  // and has not been asked since it became so
  bool work_added_ = false;           // all that are idle must be asked
  std::set<std::string> deleting_;
  uint64_t next_token_ = 1;
  uint64_t next_number_ = 1;  // of a search
  size_t leases_ = 0;
  size_t speculative_ = 0;
  int64_t model_switches_ = 0;
  Timing timing_;  // of all searches
  bool store_lost_ = false;
  bool stopping_ = false;
  std::string store_reason_;
  TimeMs now_ = 0;  // of the event being handled
  std::optional<TimeMs> ticked_;
  Actions actions_;  // of the event being handled
};

}  // namespace bitalloc
