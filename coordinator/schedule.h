// Which unit a worker gets: pure functions over the queue's state.
//
// Order of preference: searches by priority, then age; calibration before scoring; then the batch
// whose reference the worker holds, a batch nobody is on, and the batch with most left to do a
// worker on it.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "coordinator/queue.h"

namespace bitalloc {

// Searches that give out units, the first to be served first.
std::vector<const Search*> serving_order(const std::map<std::string, Search>& searches);

// Index into search.units of the best unit for `epoch` now; nothing when there is none. `workers`
// are all that are connected.
std::optional<size_t> pick_unit(const Search& search, const WorkerEpoch& epoch,
                                const std::map<WorkerEpoch, Worker>& workers, TimeMs now);

// Why the search, which grants units, has none running; empty when nothing stands in the way.
std::string why_pending(const Queue& queue, const Search& search, TimeMs now);

}  // namespace bitalloc
