// The coordinator's mind: searches, workers, leases and what to do next, as a pure state machine.
//
// handle(event, now) changes the state and returns actions. There is no clock, socket, thread,
// store or random number inside, and every container iterates in one order: the same events at the
// same times give the same actions, so a simulator can drive this code through lost, late and
// doubled messages and through crashes (a crash keeps only what was persisted).
//
// Promises:
// - A unit counts once. A result is counted when the store has it; the first write stays, a later
//   equal one is acknowledged again, a later different one is a defect: logged, never added.
// - SendAck follows StoreDone of that result. SendUnit follows StoreDone of its lease.
// - A pending unit is derived (plan − results − leases); nothing else says what is to be done.
// - A result with an old fence, or of a worker nobody knows, is taken as the first write when there
//   is none yet: scores are deterministic, so who computed them does not matter.
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

#include "coordinator/store.h"

namespace bitalloc {

using TimeMs = int64_t;  // of the caller's steady clock

struct QueueOptions {
  TimeMs lease_ms = 30'000;         // a unit not heard of for so long is somebody else's
  TimeMs liveness_ms = 5'000;       // a worker not heard of for so long is gone
  TimeMs restart_grace_ms = 5'000;  // stored leases live so long until their worker is heard
  TimeMs backoff_ms = 1'000;        // after the first retryable failure; doubles
  TimeMs stall_ms = 1'000;          // a longer pause between ticks was ours, not the workers'
  int max_attempts = 3;             // failures of one unit until its search fails
  int max_losses = 10;              // workers that vanished with one unit until its search fails
  size_t max_leases = 4'096;        // of all searches together
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
  Json info;  // the header of `hello`
};
struct WorkerReady {
  WorkerEpoch worker;
  int64_t credits = 0;
};
struct WorkerHeartbeat {
  struct Held {
    std::string search;
    UnitId unit;
    Fence fence;
  };
  WorkerEpoch worker;
  std::vector<Held> units;
};
struct WorkerResult {
  WorkerEpoch worker;
  std::string search;
  Fence fence;
  double seconds = 0;
  std::string correlation_id;
  UnitResult result;
};
struct WorkerFail {
  WorkerEpoch worker;
  std::string search;
  UnitId unit;
  Fence fence;
  Error error;
  bool retryable = false;
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

using Event =
    std::variant<event::SearchLoaded, event::Submit, event::Change, event::Delete,
                 event::WorkerHello, event::WorkerReady, event::WorkerHeartbeat,
                 event::WorkerResult, event::WorkerFail, event::WorkerBye, StoreDone, StoreLost,
                 StoreBack, event::CheckpointWritten, event::Tick, event::Stop>;

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

// Seconds that units took, by their size, for the ETA.
struct Timing {
  int64_t count = 0;
  double seconds = 0;
  double weight = 0;  // Σ unit_weight
};

// Layer passes that a unit costs, for proportions only: a trial at row r of a search runs the
// layers above r.
double unit_weight(const UnitId& unit, const SearchSpec& spec);

struct HeldLease {
  WorkerEpoch worker;
  Fence fence;
  TimeMs deadline = 0;
  bool restored = false;  // of an earlier coordinator, and its worker has not confirmed it yet
};

struct UnitState {
  bool done = false;  // the table has its result
  std::optional<HeldLease> lease;
  uint64_t storing = 0;   // token of the result on its way to the store; 0: none
  int attempts = 0;       // failures
  int losses = 0;         // workers that vanished with it
  TimeMs not_before = 0;  // back-off
  WorkerEpoch failed_on;  // where it failed last
};

struct Search {
  explicit Search(SearchRecord record);

  std::string id;
  SearchSpec spec;
  Fingerprint fingerprint;
  int64_t created_unix = 0;
  SearchStatus status;
  Fence fence;
  bool has_tokens = false;
  bool finishing = false;  // complete; the checkpoint and the state `done` are being written
  ScoreTable table;
  std::vector<UnitState> units;  // in the order of table.units()
  std::map<UnitId, size_t> index;
  std::set<WorkerEpoch> excluded;  // workers that see another model
  std::string exclusion;           // what they said
  Timing timing;
  int64_t leased = 0;
  int64_t storing = 0;
  int64_t conflicts = 0;  // results that differed from the stored one

  // Units that are neither done, nor on their way to the store, nor leased.
  int64_t open() const { return table.units_total() - table.units_done() - leased - storing; }
  bool grants() const {  // units may be given out
    return has_tokens && !finishing &&
           (status.state == SearchState::kQueued || status.state == SearchState::kRunning);
  }
};

struct Worker {
  Json info;
  TimeMs heard = 0;
  int64_t credits = 0;
  int64_t largest_credits = 0;  // ever claimed at once: what it can hold
  std::string last_search;      // the batch whose reference it holds
  UnitKind last_kind = UnitKind::kScore;
  BatchIndex last_batch;
  int64_t units_done = 0;
};

class Queue {
 public:
  explicit Queue(QueueOptions options = {});

  Actions handle(const Event& event, TimeMs now);

  // REQUIRES: valid until the next handle().
  const std::map<std::string, Search>& searches() const { return searches_; }
  const std::map<WorkerEpoch, Worker>& workers() const { return workers_; }
  const Search* find(const std::string& id) const;
  using UnitKey = std::pair<std::string, UnitId>;
  const std::map<WorkerEpoch, std::set<UnitKey>>& held() const { return held_; }
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

  void create(const event::Submit& event);
  void resubmit(Search& search, const event::Submit& event);
  Status acceptable(const Search& search, const event::Change& event) const;
  void renew(const event::WorkerHeartbeat::Held& held, const WorkerEpoch& worker);
  void drop_unconfirmed(const event::WorkerHeartbeat& event);
  void take_result(Search& search, size_t slot, const event::WorkerResult& event);
  void count_result(Search& search, const UnitResult& result);
  void report_conflict(Search& search, const UnitId& unit, const WorkerEpoch& worker);

  void schedule();
  bool grant_one(const WorkerEpoch& epoch, Worker& worker);
  void grant(Search& search, size_t slot, const WorkerEpoch& epoch, Worker& worker);
  void set_lease(Search& search, size_t slot, HeldLease lease);
  void clear_lease(Search& search, size_t slot);  // in memory
  void release(Search& search, size_t slot);      // and in the store
  void revoke_all(Search& search);
  void remove_worker(const WorkerEpoch& epoch, bool vanished);
  void lose(const UnitKey& key);
  void forgive_stall();
  void expire_leases();
  void unit_failed(Search& search, size_t slot, const WorkerEpoch& worker, const Error& error);
  void fail_search(Search& search, Error error);
  void maybe_finish(Search& search);
  void persist_status(Search& search, const SearchStatus& status, StatusPending pending);
  uint64_t persist(decltype(StoreOp::change) change, Pending pending);

  Search* find_mutable(const std::string& id);
  Worker* heard(const WorkerEpoch& epoch);
  template <typename A>
  void act(A action) {
    actions_.emplace_back(std::move(action));
  }

  QueueOptions options_;
  std::map<std::string, Search> searches_;
  std::map<WorkerEpoch, Worker> workers_;
  std::map<WorkerEpoch, std::set<UnitKey>> held_;  // of workers known and unknown
  std::map<uint64_t, Pending> pending_;            // by token
  std::set<std::string> deleting_;
  uint64_t next_token_ = 1;
  size_t leases_ = 0;
  bool store_lost_ = false;
  bool stopping_ = false;
  std::string store_reason_;
  TimeMs now_ = 0;  // of the event being handled
  std::optional<TimeMs> ticked_;
  Actions actions_;  // of the event being handled
};

}  // namespace bitalloc
