// The queue's side of workers: who is there, what they hold, what they deliver.
#include <algorithm>
#include <cmath>

#include "coordinator/queue.h"
#include "coordinator/schedule.h"

namespace bitalloc {
namespace {

constexpr int64_t kMaxCredits = 64;  // of one worker
constexpr size_t kMaxModels = 64;    // that one worker holds
constexpr size_t kMaxModelBytes = 128;
constexpr size_t kMaxWaiters = 16;  // for one result

std::string worker_text(const Json& info, const WorkerEpoch& epoch) {
  const auto host = json_field_or<std::string>(info, "host", "hello", "");
  const auto device = json_field_or<std::string>(info, "device", "hello", "");
  return fmt::format("{} ({} {})", epoch.value, host.ok() ? *host : "", device.ok() ? *device : "");
}

// What a field of hello says; the fallback when it is missing or no such thing.
template <typename T>
T said(const Json& info, const char* field, T fallback) {
  const Result<T> value = json_field_or<T>(info, field, "hello", fallback);
  return value.ok() ? *value : fallback;
}

void set_models(Worker& worker, const std::vector<std::string>& models) {
  worker.models.clear();
  for (const std::string& model : models) {
    const bool fits = model.size() <= kMaxModelBytes && worker.models.size() < kMaxModels;
    if (fits) worker.models.push_back(model);
  }
}

}  // namespace

bool Worker::holds(const std::string& model) const {
  // What it was given last counts more than what it said before that: the news may be on its way.
  const auto says = [this](const std::string& name) {
    return std::find(models.begin(), models.end(), name) != models.end();
  };
  if (last_model.empty() || says(last_model)) return says(model);
  return model == last_model;
}

Worker* Queue::heard(const WorkerEpoch& epoch) {
  const auto found = workers_.find(epoch);
  if (found == workers_.end()) return nullptr;
  found->second.heard = now_;
  return &found->second;
}

void Queue::on(const event::WorkerHello& event) {
  const auto found = workers_.find(event.worker);
  if (found == workers_.end() && workers_.size() >= options_.max_workers) {
    return act(action::Log{false, fmt::format("worker {} turned away: there are {} already",
                                              event.worker.value, workers_.size())});
  }
  Worker& worker = workers_[event.worker];
  if (found == workers_.end()) {
    worker.alarm = now_ + options_.liveness_ms;
    liveness_alarms_.insert({worker.alarm, event.worker});
  } else {
    leave_memory(event.worker, worker.memory_bytes);
  }
  worker.info = event.info;
  worker.heard = now_;
  const auto mine = held_.find(event.worker);
  worker.units_held = mine == held_.end() ? 0 : std::ssize(mine->second);
  worker.memory_bytes = std::max<int64_t>(0, said<int64_t>(event.info, "memory_bytes", 0));
  worker.numerics_version = said<int64_t>(event.info, "numerics_version", 0);
  set_models(worker, said<std::vector<std::string>>(event.info, "models", {}));
  by_memory_[worker.memory_bytes].insert(event.worker);
  work_added_ = true;  // a unit that waited for somebody else may not wait any more
}

void Queue::on(const event::WorkerReady& event) {
  Worker* worker = heard(event.worker);
  if (worker == nullptr) return;
  worker->credits = std::clamp<int64_t>(event.credits, 0, kMaxCredits);
  worker->largest_credits = std::max(worker->largest_credits, worker->credits);
  if (event.models) set_models(*worker, *event.models);
  note_idle(event.worker, *worker);
}

void Queue::on(const event::WorkerHeartbeat& event) {
  Worker* worker = heard(event.worker);
  if (worker == nullptr) return;
  if (event.models) set_models(*worker, *event.models);
  for (const auto& held : event.units) renew(held, event.worker);
  drop_unlisted(event.worker);
}

// What the worker does not have, as its heartbeat says. If a unit is only late, it stays with this
// worker as long as nobody else has got it (renew).
void Queue::drop_unlisted(const WorkerEpoch& worker) {
  const auto mine = held_.find(worker);
  if (mine == held_.end()) return;
  std::vector<std::pair<Search*, size_t>> lost;
  for (const auto& [id, unit] : mine->second) {
    Search& search = searches_.at(id);
    const size_t slot = *search.slot(unit);
    if (is_lost(*lease_of(search, slot, worker))) lost.emplace_back(&search, slot);
  }
  for (const auto& [search, slot] : lost) {
    const HeldLease* lease = lease_of(*search, slot, worker);
    if (lease != nullptr) release(*search, slot, lease->fence);
  }
}

// The unit, or what the worker said of it, was lost; or an earlier coordinator wrote the lease down
// and did not get to send the unit.
bool Queue::is_lost(HeldLease& lease) const {
  if (lease.restored) return true;
  if (!lease.listed || *lease.listed == now_) return false;
  ++lease.heartbeats_without;
  return lease.heartbeats_without >= options_.lost_heartbeats &&
         now_ - *lease.listed >= options_.lost_ms;
}

void Queue::renew(const event::WorkerHeartbeat::Held& held, const WorkerEpoch& worker) {
  const auto revoke = [&] { act(action::SendRevoke{worker, held.search, held.unit, held.fence}); };
  Search* search = find_mutable(held.search);
  if (search == nullptr || has_ended(search->status.state)) return revoke();
  const auto slot = search->slot(held.unit);
  if (!slot || held.fence > search->fence || held.fence <= Fence(0)) return revoke();
  switch (search->phases[*slot]) {
    case UnitPhase::kStoring:
      return;
    case UnitPhase::kDone:
    case UnitPhase::kSetAside:
      return revoke();
    case UnitPhase::kLeased:
      if (HeldLease* lease = lease_of(*search, *slot, worker)) {
        lease->deadline = now_ + options_.lease_ms;
        lease->restored = false;
        lease->listed = now_;
        lease->heartbeats_without = 0;
        return;
      }
      return revoke();
    case UnitPhase::kOpen:
    case UnitPhase::kResting:
      break;
  }
  Worker& holder = workers_.at(worker);
  if (!may_serve(*search, worker, holder)) return revoke();
  // Nobody's, and somebody is at it already (a lease that ran out, a restart): it stays theirs.
  if (store_lost_ || stopping_ || leases_ >= options_.max_leases) return;
  HeldLease kept{worker, held.fence, now_ + options_.lease_ms};
  kept.listed = now_;
  set_lease(*search, *slot, std::move(kept), &holder);
  const Lease lease{worker, held.fence};
  persist(PutLease{search->id, held.unit, lease},
          LeasePending{search->id, held.unit, lease, false});
}

// A result says with which numerics it was computed, or its worker has said so in `hello`.
Status Queue::acceptable(const Search& search, const event::WorkerResult& event,
                         Worker* worker) const {
  int64_t version = event.numerics_version.value_or(0);
  if (worker != nullptr) {
    int64_t& known = worker->numerics_version;
    if (version != 0) known = version;
    version = known;
  }
  if (version != 0 && version != search.numerics_version) {
    return mismatch(fmt::format("worker {} computes with numerics version {}, search '{}' with {}",
                                event.worker.value, version, search.id, search.numerics_version),
                    "numerics_version",
                    "run the same release of bitalloc on worker and coordinator");
  }
  return validate(event.result, search.spec);
}

void Queue::on(const event::WorkerResult& event) {
  Worker* worker = heard(event.worker);
  Search* search = find_mutable(event.search);
  const UnitId& unit = event.result.unit;
  // A revoke makes the worker drop the result; without one it would send it for ever.
  const auto drop = [&] { act(action::SendRevoke{event.worker, event.search, unit, event.fence}); };
  const auto slot = search == nullptr ? std::nullopt : search->slot(unit);
  if (!slot) return drop();
  const Status good = acceptable(*search, event, worker);
  if (good.ok()) return take_result(*search, *slot, event);
  act(action::SendReject{event.worker, event.search, unit, event.fence, event.correlation_id,
                         good.error()});
  drop();
  const HeldLease* lease = lease_of(*search, *slot, event.worker);
  if (lease == nullptr) return;
  if (good.error().code == ErrorCode::kMismatch) {
    release(*search, *slot, lease->fence);  // for others: this worker may not serve the search
  } else {
    unit_failed(*search, *slot, HeldLease(*lease), good.error(), true);
  }
}

void Queue::take_result(Search& search, size_t slot, const event::WorkerResult& event) {
  const UnitId& id = event.result.unit;
  const UnitPhase phase = search.phases[slot];
  if (phase == UnitPhase::kDone) {
    if (search.table.add(event.result) == ScoreTable::Added::kConflict) {
      report_conflict(search, id, event.worker);
    }
    return act(action::SendAck{event.worker, search.id, id, event.fence, event.correlation_id});
  }
  const Waiter waiter{event.worker, event.fence, event.correlation_id};
  if (phase == UnitPhase::kStoring) {
    auto& pending = std::get<ResultPending>(pending_.at(search.storing_tokens.at(slot)));
    if (!same_values(pending.result, event.result)) report_conflict(search, id, event.worker);
    if (pending.waiters.size() < kMaxWaiters) pending.waiters.push_back(waiter);
    return;
  }
  measure(search, slot, event);
  if (phase == UnitPhase::kLeased) {
    for (const HeldLease& lease : search.leases.at(slot)) {
      if (lease.worker == event.worker) continue;
      act(action::SendRevoke{lease.worker, search.id, id, lease.fence});
    }
    clear_leases(search, slot);
  }
  move(search, slot, UnitPhase::kStoring);
  search.storing_tokens[slot] = persist(PutResult{search.id, id, pack(event.result)},
                                        ResultPending{search.id, event.result, {waiter}});
}

// What the unit took: for the times to come, and for the search's turn in place of the estimate.
void Queue::measure(Search& search, size_t slot, const event::WorkerResult& event) {
  if (!std::isfinite(event.seconds) || event.seconds <= 0) return;
  double seconds = event.seconds;
  if (const HeldLease* lease = lease_of(search, slot, event.worker)) {
    const double since_grant = static_cast<double>(now_ - lease->granted) / 1'000;
    seconds = std::min(seconds, since_grant + 1);  // it cannot have taken longer
    turns_.charge(search.turn, seconds - lease->charged_seconds);
  }
  const double weight = search.weight(slot);
  search.timing.add(seconds, weight);
  timing_.add(seconds, weight);
}

void Queue::on(const event::WorkerFail& event) {
  heard(event.worker);
  Search* search = find_mutable(event.search);
  if (search == nullptr || has_ended(search->status.state)) return;
  const auto slot = search->slot(event.unit);
  const HeldLease* lease = slot ? lease_of(*search, *slot, event.worker) : nullptr;
  if (lease == nullptr || lease->fence != event.fence) return;
  if (event.error.code == ErrorCode::kMismatch) {
    release(*search, *slot, event.fence);
    exclude(*search, event.worker, event.error);
  } else {
    unit_failed(*search, *slot, HeldLease(*lease), event.error, event.retryable);
  }
}

// The worker sees another model.
void Queue::exclude(Search& search, const WorkerEpoch& worker, const Error& error) {
  search.excluded.insert(worker);
  search.exclusion = error;
  search.exclusion_time = now_;
  act(action::Log{false, fmt::format("worker {} is left out of search '{}': {}", worker.value,
                                     search.id, error.message)});
  fail_if_all_excluded(search);
}

// When every worker sees another model, the search cannot go on.
void Queue::fail_if_all_excluded(Search& search) {
  if (has_ended(search.status.state) || search.excluded.empty()) return;
  const bool all = std::none_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return may_serve(search, entry.first, entry.second);
  });
  if (all) fail_search(search, *search.exclusion);
}

void Queue::on(const event::WorkerGiveBack& event) {
  heard(event.worker);
  Search* search = find_mutable(event.search);
  const auto slot = search == nullptr ? std::nullopt : search->slot(event.unit);
  const HeldLease* lease = slot ? lease_of(*search, *slot, event.worker) : nullptr;
  if (lease != nullptr && lease->fence == event.fence) release(*search, *slot, event.fence);
}

void Queue::on(const event::WorkerBye& event) { remove_worker(event.worker, false); }

void Queue::remove_worker(const WorkerEpoch& epoch, bool vanished) {
  const auto found = workers_.find(epoch);
  TimeMs heard = now_;
  if (found != workers_.end()) {
    Worker& worker = found->second;
    heard = worker.heard;
    act(action::Log{false, fmt::format("worker {} {}", worker_text(worker.info, epoch),
                                       vanished ? "has not been heard of for too long" : "left")});
    leave_batch(worker);
    liveness_alarms_.erase({worker.alarm, epoch});
    leave_memory(epoch, worker.memory_bytes);
    workers_.erase(found);
  }
  idle_.erase(epoch);
  newly_idle_.erase(epoch);
  const auto mine = held_.find(epoch);
  const std::set<UnitKey> units = mine == held_.end() ? std::set<UnitKey>() : mine->second;
  for (const auto& [id, unit] : units) {
    Search& search = searches_.at(id);
    const size_t slot = *search.slot(unit);
    const HeldLease* lease = lease_of(search, slot, epoch);
    if (lease == nullptr) continue;  // the search has failed meanwhile
    if (vanished) {
      unit_lost(search, slot, HeldLease(*lease));
    } else {
      release(search, slot, lease->fence);
    }
  }
  for (auto& [id, search] : searches_) {
    search.excluded.erase(epoch);
    // It was dead already when the others were left out: nobody was there to go on. One that dies
    // later may come back, so the search waits.
    if (vanished && heard <= search.exclusion_time) fail_if_all_excluded(search);
  }
  work_added_ = true;
}

void Queue::leave_memory(const WorkerEpoch& epoch, int64_t memory_bytes) {
  const auto peers = by_memory_.find(memory_bytes);
  peers->second.erase(epoch);
  if (peers->second.empty()) by_memory_.erase(peers);
}

void Queue::leave_batch(Worker& worker) {
  Search* search = find_mutable(worker.last_search);
  if (search != nullptr) search->fresh.leave(worker.last_batch);
  worker.last_search.clear();
}

// This process was frozen, or its machine was: nobody could be heard meanwhile.
void Queue::forgive_stall() {
  const TimeMs stall = ticked_ ? now_ - *ticked_ - options_.stall_ms : 0;
  ticked_ = now_;
  if (stall <= 0) return;
  for (auto& [epoch, worker] : workers_) worker.heard += stall;
  for (auto& [id, search] : searches_) {
    for (auto& [slot, leases] : search.leases) {
      for (HeldLease& lease : leases) lease.deadline += stall;
    }
  }
}

// An alarm is never late, but may be early: its worker was heard since.
void Queue::remove_silent_workers() {
  while (!liveness_alarms_.empty() && liveness_alarms_.begin()->first < now_) {
    const WorkerEpoch epoch = liveness_alarms_.begin()->second;
    liveness_alarms_.erase(liveness_alarms_.begin());
    Worker& worker = workers_.at(epoch);
    worker.alarm = worker.heard + options_.liveness_ms;
    if (worker.alarm < now_) {
      remove_worker(epoch, true);
    } else {
      liveness_alarms_.insert({worker.alarm, epoch});
    }
  }
}

void Queue::on(const event::Tick&) {
  forgive_stall();
  remove_silent_workers();
  expire_leases();
  work_added_ = true;  // what was held back for somebody may be anybody's by now
  speculate();
}

}  // namespace bitalloc
