// Leases: who gets which unit, until when, and what becomes of a unit that nobody has any more.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "coordinator/queue.h"
#include "coordinator/schedule.h"

namespace bitalloc {

bool Queue::Alarm::operator<(const Alarm& other) const {
  return std::tie(when, search->turn.number, slot, fence) <
         std::tie(other.when, other.search->turn.number, other.slot, other.fence);
}

// ---- granting -----------------------------------------------------------------------------------

// First everybody gets work for the model they hold; only what is left makes a worker change its
// model, so a search is served by those that hold its model as long as one of them is free.
void Queue::schedule() {
  if (store_lost_ || stopping_) return;
  std::set<WorkerEpoch> asked = std::move(newly_idle_);
  newly_idle_.clear();
  if (turns_.empty()) return;  // whoever joins them asks everybody
  if (work_added_) asked = idle_;
  work_added_ = false;
  for (const bool may_switch : {false, true}) {
    // One unit each in turn, so that the first worker does not take everything.
    for (bool granted = true; granted && !turns_.empty();) {
      granted = false;
      for (const WorkerEpoch& epoch : asked) {
        if (turns_.empty()) break;
        if (idle_.contains(epoch)) granted |= grant_one(epoch, workers_.at(epoch), may_switch);
      }
    }
  }
}

bool Queue::grant_one(const WorkerEpoch& epoch, Worker& worker, bool may_switch) {
  if (leases_ >= options_.max_leases) return false;
  const auto pick = pick_unit(*this, epoch, worker, may_switch, now_);
  if (!pick) return false;
  grant(*pick->search, pick->slot, epoch, worker, false);
  return true;
}

void Queue::grant(Search& search, size_t slot, const WorkerEpoch& epoch, Worker& worker,
                  bool speculative) {
  ++search.fence.value;
  --worker.credits;
  if (!worker.last_model.empty() && !worker.holds(search.model())) {
    ++worker.model_switches;
    ++model_switches_;
  }
  worker.last_model = search.model();
  go_to_batch(search, slot, worker);
  HeldLease held{epoch, search.fence, now_ + options_.lease_ms};
  held.speculative = speculative;
  held.charged_seconds = expected_seconds(search, slot);
  held.place = worker.units_held + 1;
  turns_.charge(search.turn, held.charged_seconds);
  set_lease(search, slot, std::move(held), &worker);
  const Lease lease{epoch, search.fence};
  persist(PutLease{search.id, search.unit(slot), lease},
          LeasePending{search.id, search.unit(slot), lease});
  if (search.status.state == SearchState::kQueued) {
    search.status.state = SearchState::kRunning;
    persist_status(search, StatusPending{search.id, std::nullopt});
  }
}

void Queue::go_to_batch(Search& search, size_t slot, Worker& worker) {
  leave_batch(worker);
  worker.last_search = search.id;
  worker.last_batch = search.layout.batch(slot);
  search.fresh.join(worker.last_batch);
}

// From what units of this search took, or of any, or, before anything was measured, a second.
double Queue::expected_seconds(const Search& search, size_t slot) const {
  const Timing& timing = search.timing.count > 0 ? search.timing : timing_;
  if (!(timing.weight > 0)) return 1;
  return search.weight(slot) * timing.seconds / timing.weight;
}

// Workers that no unit is open for run again what takes a worker too long: the first result counts.
void Queue::speculate() {
  if (store_lost_ || stopping_) return;
  schedule();
  if (idle_.empty() || speculative_ >= options_.max_speculative) return;
  std::vector<std::pair<Search*, size_t>> stragglers;
  for (auto& [id, search] : searches_) {
    if (!search.grants()) continue;
    for (const auto& [slot, leases] : search.leases) {
      if (leases.size() == 1 && is_straggler(search, slot, leases[0])) {
        stragglers.emplace_back(&search, slot);
      }
    }
  }
  for (const auto& [search, slot] : stragglers) {
    if (speculative_ >= options_.max_speculative || leases_ >= options_.max_leases) return;
    const WorkerEpoch* helper = helper_for(*search, slot);
    if (helper == nullptr) continue;
    ++search->speculated;
    const WorkerEpoch epoch = *helper;  // a copy: it may not be among the idle ones afterwards
    grant(*search, slot, epoch, workers_.at(epoch), true);
  }
}

bool Queue::is_straggler(const Search& search, size_t slot, const HeldLease& lease) const {
  if (lease.restored || search.timing.count < options_.straggler_samples) return false;
  const double usual_ms = 1'000 * expected_seconds(search, slot) * static_cast<double>(lease.place);
  const double patience_ms = std::max(options_.straggler_factor * usual_ms,
                                      static_cast<double>(options_.straggler_min_ms));
  return static_cast<double>(now_ - lease.granted) > patience_ms;
}

// An idle worker, not the unit's own, that can begin it without giving up another model; null:
// none.
const WorkerEpoch* Queue::helper_for(const Search& search, size_t slot) const {
  const WorkerEpoch& own = search.leases.at(slot)[0].worker;
  const auto trouble = search.troubles.find(slot);
  const int64_t too_few_bytes =
      trouble == search.troubles.end() ? -1 : trouble->second.more_than_bytes;
  for (const WorkerEpoch& epoch : idle_) {
    const Worker& worker = workers_.at(epoch);
    const bool has_no_other = worker.last_model.empty() && worker.models.empty();
    if (epoch != own && worker.memory_bytes > too_few_bytes && may_serve(search, epoch, worker) &&
        (has_no_other || worker.holds(search.model()))) {
      return &epoch;
    }
  }
  return nullptr;
}

void Queue::note_idle(const WorkerEpoch& epoch, const Worker& worker) {
  // A worker that says `ready` while a unit is on its way to it does not know of that unit yet.
  if (worker.credits > 0 && worker.units_held < worker.largest_credits) {
    idle_.insert(epoch);
    newly_idle_.insert(epoch);
  } else if (idle_.erase(epoch) > 0) {
    newly_idle_.erase(epoch);
  }
}

// ---- leases -------------------------------------------------------------------------------------

// `worker` is null when it is not connected.
void Queue::set_lease(Search& search, size_t slot, HeldLease lease, Worker* worker) {
  held_[lease.worker].insert({search.id, search.unit(slot)});
  if (worker != nullptr) {
    ++worker->units_held;
    note_idle(lease.worker, *worker);
  }
  lease.granted = now_;
  lease.alarm = lease.deadline;
  lease_alarms_.insert({lease.alarm, &search, slot, lease.fence});
  ++leases_;
  speculative_ += lease.speculative ? 1 : 0;
  std::vector<HeldLease>& leases = search.leases[slot];
  leases.push_back(std::move(lease));
  if (leases.size() == 1) move(search, slot, UnitPhase::kLeased);
}

HeldLease* Queue::lease_of(Search& search, size_t slot, const WorkerEpoch& worker) {
  const auto leases = search.leases.find(slot);
  if (leases == search.leases.end()) return nullptr;
  for (HeldLease& lease : leases->second) {
    if (lease.worker == worker) return &lease;
  }
  return nullptr;
}

HeldLease Queue::clear_lease(Search& search, size_t slot, Fence fence) {
  std::vector<HeldLease>& leases = search.leases.at(slot);
  const auto found = std::find_if(leases.begin(), leases.end(),
                                  [&](const HeldLease& lease) { return lease.fence == fence; });
  BA_CHECK(found != leases.end(), "no lease with this fence");
  HeldLease lease = std::move(*found);
  leases.erase(found);
  if (leases.empty()) search.leases.erase(slot);
  lease_alarms_.erase({lease.alarm, &search, slot, lease.fence});
  const auto holder = held_.find(lease.worker);
  holder->second.erase({search.id, search.unit(slot)});
  if (holder->second.empty()) held_.erase(holder);
  if (leases_-- == options_.max_leases) work_added_ = true;
  speculative_ -= lease.speculative ? 1 : 0;
  if (const auto worker = workers_.find(lease.worker); worker != workers_.end()) {
    --worker->second.units_held;
    note_idle(lease.worker, worker->second);
  }
  return lease;
}

void Queue::clear_leases(Search& search, size_t slot) {
  while (search.leases.contains(slot)) {
    clear_lease(search, slot, search.leases.at(slot).front().fence);
  }
}

void Queue::release(Search& search, size_t slot, Fence fence) {
  clear_lease(search, slot, fence);
  persist(DropLease{search.id, search.unit(slot), fence}, std::monostate());
  if (!search.leases.contains(slot)) settle(search, slot);
}

void Queue::revoke_all(Search& search) {
  const auto leases = search.leases;
  for (const auto& [slot, held] : leases) {
    for (const HeldLease& lease : held) {
      act(action::SendRevoke{lease.worker, search.id, search.unit(slot), lease.fence});
      release(search, slot, lease.fence);
    }
  }
}

void Queue::expire_leases() {
  while (!lease_alarms_.empty() && lease_alarms_.begin()->when < now_) {
    const Alarm alarm = *lease_alarms_.begin();
    Search& search = *alarm.search;
    auto& leases = search.leases.at(alarm.slot);
    HeldLease& lease = *std::find_if(leases.begin(), leases.end(), [&](const HeldLease& held) {
      return held.fence == alarm.fence;
    });
    if (lease.deadline < now_) {
      act(action::SendRevoke{lease.worker, search.id, search.unit(alarm.slot), lease.fence});
      release(search, alarm.slot, alarm.fence);
      continue;
    }
    lease_alarms_.erase(lease_alarms_.begin());
    lease.alarm = lease.deadline;  // it was renewed
    lease_alarms_.insert({lease.alarm, &search, alarm.slot, lease.fence});
  }
}

// ---- what becomes of a unit ---------------------------------------------------------------------

void Queue::move(Search& search, size_t slot, UnitPhase phase) {
  search.set_phase(slot, phase);
  if (phase == UnitPhase::kOpen) work_added_ = true;
  refresh(search);
}

// Whether the search is among those that have a turn follows from its state and its units.
void Queue::refresh(Search& search) {
  const bool waits = search.grants() && search.has_open();
  if (waits == search.turn.waiting) return;
  if (waits) {
    turns_.join(search.turn);
    work_added_ = true;
  } else {
    turns_.leave(search.turn);
  }
}

// The unit is nobody's any more: it is open, or rests, or is set aside.
void Queue::settle(Search& search, size_t slot) {
  const auto found = search.troubles.find(slot);
  if (found == search.troubles.end()) return move(search, slot, UnitPhase::kOpen);
  const UnitTrouble& trouble = found->second;
  if (trouble.hopeless || trouble.failure.attempts >= options_.max_attempts ||
      trouble.failure.losses >= options_.max_losses) {
    return set_aside(search, slot);
  }
  if (trouble.not_before <= now_) return move(search, slot, UnitPhase::kOpen);
  move(search, slot, UnitPhase::kResting);
  rest_alarms_.insert({trouble.not_before, &search, slot, Fence()});
}

void Queue::wake_rested() {
  while (!rest_alarms_.empty() && rest_alarms_.begin()->when <= now_) {
    const Alarm alarm = *rest_alarms_.begin();
    rest_alarms_.erase(rest_alarms_.begin());
    Search& search = *alarm.search;
    if (search.phases[alarm.slot] != UnitPhase::kResting) continue;
    if (search.troubles.at(alarm.slot).not_before > now_) continue;  // failed again meanwhile
    move(search, alarm.slot, UnitPhase::kOpen);
  }
}

void Queue::unit_failed(Search& search, size_t slot, const HeldLease& lease, const Error& error,
                        bool retryable) {
  UnitTrouble& trouble = search.troubles[slot];
  UnitFailure& failure = trouble.failure;
  ++failure.attempts;
  failure.worker = lease.worker;
  failure.error = error;
  trouble.hopeless |= !retryable;
  const int doublings = std::min(failure.attempts - 1, 20);
  trouble.not_before =
      now_ + std::min(options_.backoff_ms << doublings, options_.largest_backoff_ms);
  if (error.code == ErrorCode::kResourceExhausted) {
    const auto worker = workers_.find(lease.worker);
    const int64_t memory = worker == workers_.end() ? 0 : worker->second.memory_bytes;
    if (memory > 0) {
      trouble.more_than_bytes = std::max(trouble.more_than_bytes, memory);
      trouble.hopeless |= !somebody_better(*this, search, trouble.group());
    }
  }
  act(action::Log{false, fmt::format("{} of search '{}' failed on worker {} ({} of {}): {}",
                                     unit_name(search.unit(slot)), search.id, lease.worker.value,
                                     failure.attempts, options_.max_attempts, error.message)});
  release(search, slot, lease.fence);
}

// The worker has vanished. A unit that takes every worker with it must not do so for ever.
void Queue::unit_lost(Search& search, size_t slot, const HeldLease& lease) {
  UnitTrouble& trouble = search.troubles[slot];
  UnitFailure& failure = trouble.failure;
  ++failure.losses;
  failure.worker = lease.worker;
  failure.error = unavailable(fmt::format("worker {} vanished while it held the unit, {} before it",
                                          lease.worker.value, failure.losses - 1),
                              "", "see the workers' logs (out of memory?)");
  trouble.not_before = now_;
  release(search, slot, lease.fence);
}

void Queue::set_aside(Search& search, size_t slot) {
  move(search, slot, UnitPhase::kSetAside);
  const UnitFailure& failure = search.troubles.at(slot).failure;
  persist(PutFailure{search.id, search.unit(slot), failure}, std::monostate());
  act(action::Log{false,
                  fmt::format("{} of search '{}' is set aside: {}", unit_name(search.unit(slot)),
                              search.id, failure.error.message)});
  act(action::Publish{search.id});
  maybe_finish(search);
}

}  // namespace bitalloc
