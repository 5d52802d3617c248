#include "coordinator/schedule.h"

#include <algorithm>

namespace bitalloc {
namespace {

bool speaks_other_numerics(const Search& search, const Worker& worker) {
  return worker.numerics_version != 0 && worker.numerics_version != search.numerics_version;
}

// No worker that would be better suited is expected any more.
bool may_be_anybodys(const Queue& queue, const Search& search, const RetryPool::Group& group,
                     TimeMs waited) {
  const bool lacked_memory = group.more_than_bytes >= 0;
  const bool long_enough = waited > queue.options().prefer_other_ms;
  if (!lacked_memory && long_enough) return true;
  if (lacked_memory && !long_enough) return false;  // who has more may come back
  return !somebody_better(queue, search, group);
}

std::optional<size_t> pick_slot(const Queue& queue, const Search& search, const WorkerEpoch& epoch,
                                const Worker& worker, TimeMs now) {
  if (!search.retries.empty()) {
    const auto hopeless = [&](const RetryPool::Group& group, size_t slot) {
      return may_be_anybodys(queue, search, group, now - search.troubles.at(slot).not_before);
    };
    const auto slot = search.retries.pick(epoch, worker.memory_bytes, hopeless);
    if (slot) return slot;
  }
  if (worker.last_search == search.id) {
    if (const auto slot = search.fresh.first_of(worker.last_batch)) return slot;
  }
  return search.fresh.best();
}

// Of one level. `blocked`: there is a unit, but the worker must change its model for it.
std::optional<Pick> pick_of_level(const Queue& queue, const Turns::Level& level,
                                  const WorkerEpoch& epoch, const Worker& worker, bool may_switch,
                                  TimeMs now, bool& blocked) {
  std::optional<Pick> other;  // of a model that the worker does not hold
  for (const Turn* turn : level.turns) {
    Search& search = *turn->search;
    if (!may_serve(search, epoch, worker)) continue;
    const bool holds = worker.holds(search.model());
    if (other && !holds) continue;
    if (other && turn->served_seconds - other->search->turn.served_seconds >
                     queue.options().model_switch_seconds) {
      break;  // it has been passed over for long enough
    }
    const auto slot = pick_slot(queue, search, epoch, worker, now);
    if (!slot) continue;
    if (holds) return Pick{&search, *slot};
    other = Pick{&search, *slot};
  }
  blocked = other.has_value();
  return may_switch ? other : std::nullopt;
}

std::string why_nobody_serves(const Queue& queue, const Search& search) {
  const auto& workers = queue.workers();
  if (workers.empty()) return "no worker is connected";
  const bool anybody = std::any_of(workers.begin(), workers.end(), [&](const auto& entry) {
    return may_serve(search, entry.first, entry.second);
  });
  if (anybody) return "";
  for (const auto& [epoch, worker] : workers) {
    if (!speaks_other_numerics(search, worker)) continue;
    return fmt::format(
        "no connected worker may serve it: worker {} computes with numerics version {}, the search "
        "needs {}; run the same release on all",
        epoch.value, worker.numerics_version, search.numerics_version);
  }
  return "every connected worker sees another model: " + search.exclusion->message;
}

std::string why_others_go_first(const Queue& queue, const Search& search) {
  const auto& levels = queue.turns().levels();
  size_t higher = 0;
  for (const auto& [priority, level] : levels) {
    if (priority > search.turn.priority) higher += level.turns.size();
  }
  if (higher > 0) return fmt::format("{} searches of higher priority are served before it", higher);
  const auto level = levels.find(search.turn.priority);
  const size_t peers = level == levels.end() ? 0 : level->second.turns.size();
  if (peers > 1) return fmt::format("it shares the workers with {} searches", peers - 1);
  return "every worker is busy";
}

}  // namespace

bool may_serve(const Search& search, const WorkerEpoch& epoch, const Worker& worker) {
  return !speaks_other_numerics(search, worker) && !search.excluded.contains(epoch);
}

bool somebody_better(const Queue& queue, const Search& search, const RetryPool::Group& group) {
  const auto& by_memory = queue.by_memory();
  for (auto it = by_memory.rbegin(); it != by_memory.rend(); ++it) {
    const auto& [bytes, epochs] = *it;
    if (group.more_than_bytes >= bytes) return false;
    for (const WorkerEpoch& epoch : epochs) {
      if (epoch != group.failed_on && may_serve(search, epoch, queue.workers().at(epoch))) {
        return true;
      }
    }
  }
  return false;
}

std::optional<Pick> pick_unit(const Queue& queue, const WorkerEpoch& epoch, const Worker& worker,
                              bool may_switch, TimeMs now) {
  for (const auto& [priority, level] : queue.turns().levels()) {
    bool blocked = false;
    const auto pick = pick_of_level(queue, level, epoch, worker, may_switch, now, blocked);
    if (pick || blocked) return pick;  // a lower level does not keep a worker from a higher one
  }
  return std::nullopt;
}

std::string why_pending(const Queue& queue, const Search& search, TimeMs now) {
  if (search.status.state == SearchState::kPaused) {
    return search.has_tokens ? "paused; `bitalloc resume` goes on"
                             : "imported without its tokens; submit it with them to go on";
  }
  if (!search.grants() || search.leased > 0) return "";
  if (queue.store_lost()) return "Redis cannot be reached: " + queue.store_reason();
  if (std::string reason = why_nobody_serves(queue, search); !reason.empty()) return reason;
  if (!search.has_open()) {
    if (search.resting.empty()) return "";  // the last results are on their way to the disk
    const TimeMs wait = search.troubles.at(*search.resting.begin()).not_before - now;
    return fmt::format("waiting after a failure on a worker, {:.0f} s more",
                       static_cast<double>(std::max<TimeMs>(wait, 0)) / 1'000);
  }
  return why_others_go_first(queue, search);
}

}  // namespace bitalloc
