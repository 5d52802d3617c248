// Which unit a worker gets, and why a search waits: pure functions over the queue's state.
//
// Order of preference:
// 1. Searches by priority, strictly; within a level by Turns (fair shares of worker-seconds),
// except
//    that a worker stays with the searches of the model it holds until another search of the level
//    is QueueOptions::model_switch_seconds behind them.
// 2. Within a search: units that failed elsewhere and have rested; then the batch whose reference
//    the worker holds, a batch nobody is on, the batch with most left for each worker on it.
//    Calibration comes before scoring.
#pragma once

#include <optional>
#include <string>

#include "coordinator/queue.h"

namespace bitalloc {

// The worker sees the search's model and computes as the search needs.
bool may_serve(const Search& search, const WorkerEpoch& epoch, const Worker& worker);

// Somebody is connected who should take the units of this group: with more memory where that was
// short, and another worker than the one they failed on.
bool somebody_better(const Queue& queue, const Search& search, const RetryPool::Group& group);

struct Pick {
  Search* search = nullptr;
  size_t slot = 0;
};

// The unit for `epoch` now; nothing when there is none that it should take. Without `may_switch`
// only a unit of a model that it holds.
std::optional<Pick> pick_unit(const Queue& queue, const WorkerEpoch& epoch, const Worker& worker,
                              bool may_switch, TimeMs now);

// Why the search, which has not ended, has no unit running; empty when nothing stands in the way.
std::string why_pending(const Queue& queue, const Search& search, TimeMs now);

}  // namespace bitalloc
