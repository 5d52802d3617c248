// What people see of the queue: the JSON of `status`, `list` and `workers`.
#pragma once

#include "coordinator/queue.h"

namespace bitalloc {

// The "search status" of wire.h.
Json status_json(const Queue& queue, const Search& search, TimeMs now);

// Seconds until the search is done, low and high: measured seconds a unit of weight times the
// weight that is left, over the workers that are on it. Null without a measurement or a worker.
Json eta_json(const Queue& queue, const Search& search);

// [{"epoch", "host", "pid", "device", …what the worker said…, "state": "idle|busy", "units",
//   "units_done", "models", "model_switches", "credits", "heard_ms_ago",
//   "holding": [{"search", "unit"}]}].
Json workers_json(const Queue& queue, TimeMs now);

}  // namespace bitalloc
