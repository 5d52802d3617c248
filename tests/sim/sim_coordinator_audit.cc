// What the queue says, held against the promises before it is carried out.
#include <algorithm>

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
  int64_t leased = 0;
  int64_t held = 0;
  for (const auto& [id, search] : queue_->searches()) {
    leased += search.leased;
    if (search.open() < 0 || search.storing < 0 || search.leased < 0) {
      scene_.audit.violated("counts stay right",
                            fmt::format("'{}' has {} open, {} leased, {} on their way", id,
                                        search.open(), search.leased, search.storing));
    }
    if (options_.audit_everything) check_counts(search);
  }
  for (const auto& [epoch, units] : queue_->held()) held += std::ssize(units);
  if (leased != held) {
    scene_.audit.violated("counts stay right",
                          fmt::format("{} units are leased, workers hold {}", leased, held));
  }
  if (leased > static_cast<int64_t>(options_.queue.max_leases)) {
    scene_.audit.violated("leases are bounded", fmt::format("{} at once", leased));
  }
}

void SimCoordinator::check_counts(const Search& search) {
  int64_t leased = 0;
  int64_t storing = 0;
  int64_t done = 0;
  for (const UnitState& unit : search.units) {
    leased += unit.lease.has_value();
    storing += unit.storing != 0;
    done += unit.done;
  }
  if (leased != search.leased || storing != search.storing || done != search.table.units_done()) {
    scene_.audit.violated(
        "counts stay right",
        fmt::format("'{}' counts {}, {}, {} and has {}, {}, {}", search.id, search.leased,
                    search.storing, search.table.units_done(), leased, storing, done));
  }
}

// A unit of another search that a client was told is more important, of the same model, that this
// worker could have taken, and that nobody has failed: it should have gone first.
void SimCoordinator::check_priority(const Search& granted, const WorkerEpoch& worker) {
  const auto& priorities = scene_.audit.priorities;
  const auto mine = priorities.find(granted.id);
  if (!options_.audit_everything || mine == priorities.end()) return;
  for (const auto& [id, priority] : priorities) {
    const Search* other = queue_->find(id);
    if (priority <= mine->second || other == nullptr || !other->grants()) continue;
    if (other->excluded.contains(worker)) continue;
    if (other->spec.model.weights_sha256 != granted.spec.model.weights_sha256) continue;
    const UnitKind kind = other->table.calibrated() ? UnitKind::kScore : UnitKind::kCalibrate;
    for (size_t slot = 0; slot < other->units.size(); ++slot) {
      const UnitState& unit = other->units[slot];
      if (other->table.units()[slot].kind != kind || unit.done || unit.lease || unit.storing != 0 ||
          unit.attempts > 0 || unit.losses > 0) {
        continue;
      }
      return scene_.audit.violated(
          "the more important search goes first",
          fmt::format("{} got a unit of '{}' at {} while {} of '{}' at {} was open", worker.value,
                      granted.id, mine->second, unit_name(other->table.units()[slot]), id,
                      priority));
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
