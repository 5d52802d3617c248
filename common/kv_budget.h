// A budget in bytes, as people who serve models have it. How many bytes an assignment takes:
// kv_memory.h.
#pragma once

#include <cstdint>
#include <string>

#include "common/json.h"
#include "common/status.h"

namespace bitalloc {

// What the cache must hold at once.
struct KvLoad {
  int64_t context = 0;          // tokens a sequence
  int64_t sequences = 1;        // at the same time
  int64_t tensor_parallel = 1;  // ranks that share the KV heads
  int64_t block_tokens = 16;    // tokens a block of the paged cache
};

// A load that must fit into so many bytes on every rank.
struct KvBudget {
  int64_t bytes = 0;  // of cache on a rank
  KvLoad load;
  // Instead of `bytes`: of a whole GPU, weights included. 0: not said.
  int64_t gpu_bytes = 0;
};

// {"memory_bytes" or "gpu_memory_bytes", "context", "sequences", "tp", "block_tokens"}; the last
// three may be left out.
Json to_json(const KvBudget& budget);
// Errors: kInvalidArgument naming the field; the numbers' bounds are those of kv_memory.h.
Result<KvBudget> kv_budget_from_json(const Json& json, const std::string& where);

}  // namespace bitalloc
