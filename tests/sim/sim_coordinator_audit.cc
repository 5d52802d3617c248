// What the queue says, held against the promises before it is carried out.
#include <algorithm>
#include <array>

#include "tests/sim/sim_coordinator.h"
#include "tests/sim/texts.h"

namespace bitalloc::sim {

void SimCoordinator::inspect(const action::Persist& action) {
  if (const auto* gone = std::get_if<DeleteSearch>(&action.op.change)) {
    granted_fences_.erase(gone->search);
  }
  const auto* put = std::get_if<PutLease>(&action.op.change);
  if (put == nullptr) return;
  int64_t& newest = granted_fences_[put->search];
  const bool granted = put->lease.fence.value > newest;  // not: left to who has it already
  if (!granted) return;
  newest = put->lease.fence.value;
  ++scene_.audit.grants;
  if (!holds_lock()) return;
  const std::string what = lease_text(put->search, put->unit, put->lease.fence);
  if (redis_.model().result(put->search, put->unit) != nullptr) {
    scene_.audit.violated("no done unit is granted", what);
  }
  if (scene_.audit.is_stopped(put->search)) {
    scene_.audit.violated("a pause or cancel is honoured", what);
  }
  const Search* search = queue_->find(put->search);
  if (search != nullptr) check_priority(*search, put->lease.worker);
}

void SimCoordinator::inspect(const action::SendUnit& action) {
  const std::string what = lease_text(action.search, action.unit, action.fence);
  if (!scene_.audit.was_leased(action.search, action.unit, action.fence)) {
    scene_.audit.violated("a unit is sent after its lease is durable", what);
  }
  if (!holds_lock()) return;
  if (redis_.model().result(action.search, action.unit) != nullptr) {
    scene_.audit.violated("no done unit is sent", what);
  }
}

void SimCoordinator::inspect(const action::SendAck& action) {
  ++scene_.audit.acks;
  if (redis_.model().find(action.search) == nullptr) return;  // deleted: nobody wants it
  if (redis_.model().result(action.search, action.unit) == nullptr) {
    scene_.audit.violated("acknowledged implies durable",
                          lease_text(action.search, action.unit, action.fence));
  }
}

void SimCoordinator::inspect(const action::ReplyStatus& action) {
  using Kind = ClientRequest::Kind;
  const auto waiting = requests_.find(action.request);
  if (waiting == requests_.end() || !holds_lock()) return;
  const ClientRequest& request = waiting->second.request;
  const bool overtaken = std::any_of(std::next(waiting), requests_.end(), [&](const auto& later) {
    return later.second.request.search == request.search;
  });
  if (overtaken) return;  // by a later request, whose change may be durable already
  const SearchRecord* stored = redis_.model().find(request.search);
  const Search* search = queue_->find(request.search);
  if (stored == nullptr || search == nullptr) {
    return scene_.audit.violated("an answer implies durable",
                                 fmt::format("{} of '{}', which the store does not have",
                                             kind_name(request.kind), request.search));
  }
  const SearchState state = stored->status.state;
  const bool finished = has_ended(state) || search->finishing;
  if ((request.kind == Kind::kPause && state != SearchState::kPaused && !finished) ||
      (request.kind == Kind::kCancel && !finished) ||
      (request.kind == Kind::kReprioritize && stored->status.priority != request.priority)) {
    scene_.audit.violated(
        "an answer implies durable",
        fmt::format("{} of '{}', but the store says {} at priority {}", kind_name(request.kind),
                    request.search, search_state_name(state), stored->status.priority));
  }
}

void SimCoordinator::inspect(const action::ReplyDeleted& action) {
  if (holds_lock() && redis_.model().find(action.search) != nullptr) {
    scene_.audit.violated("an answer implies durable", "delete of " + action.search);
  }
}

void SimCoordinator::inspect(const action::Log& action) {
  if (action.defect && !scene_.audit.any_wrong_result()) {
    scene_.audit.violated("results of good workers never differ", action.text);
  }
}

void SimCoordinator::check_bounds() {
  int64_t leases = 0;
  int64_t held = 0;
  for (const auto& [id, search] : queue_->searches()) {
    if (search.open() < 0 || search.storing < 0 || search.leased < 0) {
      scene_.audit.violated("counts stay right",
                            fmt::format("'{}' has {} open, {} leased, {} on their way", id,
                                        search.open(), search.leased, search.storing));
    }
    if (!options_.audit_everything) continue;
    for (const auto& [slot, of_unit] : search.leases) leases += std::ssize(of_unit);
    check_counts(search);
  }
  if (!options_.audit_everything) return;
  for (const auto& [epoch, units] : queue_->held()) held += std::ssize(units);
  if (leases != held || leases > static_cast<int64_t>(options_.queue.max_leases)) {
    scene_.audit.violated("leases are bounded",
                          fmt::format("there are {} leases, workers hold {}", leases, held));
  }
}

void SimCoordinator::check_counts(const Search& search) {
  std::array<int64_t, 6> units{};  // by phase
  for (const UnitPhase phase : search.phases) ++units[static_cast<size_t>(phase)];
  const auto count = [&](UnitPhase phase) { return units[static_cast<size_t>(phase)]; };
  for (const auto& [slot, held] : search.leases) {
    if (held.empty() || held.size() > 2 || search.phases[slot] != UnitPhase::kLeased) {
      scene_.audit.violated("leases are bounded",
                            fmt::format("{} of '{}' has {} leases", unit_name(search.unit(slot)),
                                        search.id, held.size()));
    }
  }
  if (count(UnitPhase::kLeased) == search.leased && std::ssize(search.leases) == search.leased &&
      count(UnitPhase::kStoring) == search.storing &&
      std::ssize(search.storing_tokens) == search.storing &&
      count(UnitPhase::kDone) == search.table.units_done() &&
      count(UnitPhase::kResting) == std::ssize(search.resting) &&
      count(UnitPhase::kSetAside) == std::ssize(search.set_aside)) {
    return;
  }
  scene_.audit.violated("counts stay right",
                        fmt::format("those of '{}' are not those of its units", search.id));
}

// A unit of another search that a client was told is more important, that nobody has failed and
// this worker could have taken: it should have gone first.
void SimCoordinator::check_priority(const Search& granted, const WorkerEpoch& worker) {
  const auto& priorities = scene_.audit.priorities;
  const auto mine = priorities.find(granted.id);
  if (!options_.audit_everything || mine == priorities.end()) return;
  for (const auto& [id, priority] : priorities) {
    const Search* other = queue_->find(id);
    if (priority <= mine->second || other == nullptr || !other->grants()) continue;
    if (other->excluded.contains(worker)) continue;
    const UnitKind kind = other->table.calibrated() ? UnitKind::kScore : UnitKind::kCalibrate;
    for (size_t slot = 0; slot < other->phases.size(); ++slot) {
      if (other->unit(slot).kind != kind || other->phases[slot] != UnitPhase::kOpen ||
          other->troubles.contains(slot)) {
        continue;
      }
      return scene_.audit.violated(
          "the more important search goes first",
          fmt::format("{} got a unit of '{}' at {} while {} of '{}' at {} was open", worker.value,
                      granted.id, mine->second, unit_name(other->unit(slot)), id, priority));
    }
  }
}

void SimCoordinator::check_quiet() {
  for (const auto& [id, search] : queue_->searches()) {
    if (search.leased != 0 || search.storing != 0 || search.finishing) {
      scene_.audit.violated(
          "nothing is held for ever",
          fmt::format("'{}' has {} units leased, {} on their way{}", id, search.leased,
                      search.storing, search.finishing ? ", and is still finishing" : ""));
    }
  }
  if (!queue_->held().empty()) {
    scene_.audit.violated("nothing is held for ever", "some worker's list of units is left");
  }
  if (queue_->unanswered_changes() != link_.unanswered()) {
    scene_.audit.violated("the queue's memory is bounded",
                          fmt::format("it waits for {} changes; {} are on their way",
                                      queue_->unanswered_changes(), link_.unanswered()));
  }
}

}  // namespace bitalloc::sim
