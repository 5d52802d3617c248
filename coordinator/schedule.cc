#include "coordinator/schedule.h"

#include <algorithm>

namespace bitalloc {
namespace {

using Batch = std::pair<UnitKind, int64_t>;

Batch batch_of(const UnitId& unit) { return {unit.kind, unit.batch.value}; }

struct BatchLoad {
  size_t first = 0;  // the first unit that the worker may take
  int64_t open = 0;  // how many it may take
};

bool other_worker_may(const Search& search, const WorkerEpoch& epoch,
                      const std::map<WorkerEpoch, Worker>& workers) {
  return std::any_of(workers.begin(), workers.end(), [&](const auto& entry) {
    return entry.first != epoch && !search.excluded.contains(entry.first);
  });
}

bool is_open(const Search& search, size_t slot, TimeMs now) {
  const UnitState& unit = search.units[slot];
  return !unit.done && !unit.lease && unit.storing == 0 && unit.not_before <= now;
}

// Batches with units that the worker may take now, in plan order by their key.
std::map<Batch, BatchLoad> open_batches(const Search& search, const WorkerEpoch& epoch,
                                        bool avoid_own_failures, TimeMs now) {
  const UnitKind kind = search.table.calibrated() ? UnitKind::kScore : UnitKind::kCalibrate;
  std::map<Batch, BatchLoad> batches;
  const auto& units = search.table.units();
  for (size_t slot = 0; slot < units.size(); ++slot) {
    if (units[slot].kind != kind || !is_open(search, slot, now)) continue;
    if (avoid_own_failures && search.units[slot].failed_on == epoch) continue;
    const auto [entry, inserted] = batches.try_emplace(batch_of(units[slot]));
    if (inserted) entry->second.first = slot;
    ++entry->second.open;
  }
  return batches;
}

// Workers other than `epoch` on each batch of the search.
std::map<Batch, int64_t> crowds(const Search& search, const WorkerEpoch& epoch,
                                const std::map<WorkerEpoch, Worker>& workers) {
  std::map<Batch, int64_t> crowd;
  for (const auto& [other, worker] : workers) {
    if (other != epoch && worker.last_search == search.id) {
      ++crowd[{worker.last_kind, worker.last_batch.value}];
    }
  }
  return crowd;
}

}  // namespace

std::vector<const Search*> serving_order(const std::map<std::string, Search>& searches) {
  std::vector<const Search*> order;
  for (const auto& [id, search] : searches) {
    if (search.grants()) order.push_back(&search);
  }
  std::sort(order.begin(), order.end(), [](const Search* a, const Search* b) {
    if (a->status.priority != b->status.priority) return a->status.priority > b->status.priority;
    return std::tie(a->created_unix, a->id) < std::tie(b->created_unix, b->id);
  });
  return order;
}

std::optional<size_t> pick_unit(const Search& search, const WorkerEpoch& epoch,
                                const std::map<WorkerEpoch, Worker>& workers, TimeMs now) {
  if (search.open() <= 0 || search.excluded.contains(epoch)) return std::nullopt;
  const auto batches = open_batches(search, epoch, other_worker_may(search, epoch, workers), now);
  if (batches.empty()) return std::nullopt;

  const Worker& worker = workers.at(epoch);
  if (worker.last_search == search.id) {
    const auto own = batches.find({worker.last_kind, worker.last_batch.value});
    if (own != batches.end()) return own->second.first;
  }
  const auto crowd = crowds(search, epoch, workers);
  const BatchLoad* best = nullptr;
  double best_share = 0;
  for (const auto& [batch, load] : batches) {
    const auto others = crowd.find(batch);
    if (others == crowd.end()) return load.first;
    const double share = static_cast<double>(load.open) / static_cast<double>(others->second + 1);
    if (share > best_share) {
      best = &load;
      best_share = share;
    }
  }
  return best->first;
}

std::string why_pending(const Queue& queue, const Search& search, TimeMs now) {
  if (search.status.state == SearchState::kPaused) {
    return search.has_tokens ? "paused; `bitalloc resume` goes on"
                             : "imported without its tokens; submit it with them to go on";
  }
  if (!search.grants() || search.leased > 0) return "";
  if (queue.store_lost()) return "Redis cannot be reached: " + queue.store_reason();
  const auto& workers = queue.workers();
  if (workers.empty()) return "no worker is connected";
  const bool all_excluded = std::all_of(workers.begin(), workers.end(), [&](const auto& entry) {
    return search.excluded.contains(entry.first);
  });
  if (all_excluded) return "every connected worker sees another model: " + search.exclusion;
  for (const UnitState& unit : search.units) {
    if (unit.attempts > 0 && unit.not_before > now) return "waiting after a failure on a worker";
  }
  const auto order = serving_order(queue.searches());
  const auto place = std::find(order.begin(), order.end(), &search) - order.begin();
  if (place > 0) return fmt::format("{} searches are served before it", place);
  return "every worker is busy";
}

}  // namespace bitalloc
