#include "common/kv_budget.h"

#include <fmt/format.h>

namespace bitalloc {

Json to_json(const KvBudget& budget) {
  Json json = {{"context", budget.load.context},
               {"sequences", budget.load.sequences},
               {"tp", budget.load.tensor_parallel},
               {"block_tokens", budget.load.block_tokens}};
  if (budget.gpu_bytes > 0) json["gpu_memory_bytes"] = budget.gpu_bytes;
  if (budget.bytes > 0 || budget.gpu_bytes == 0) json["memory_bytes"] = budget.bytes;
  return json;
}

Result<KvBudget> kv_budget_from_json(const Json& json, const std::string& where) {
  KvBudget budget;
  const KvLoad usual;
  BA_ASSIGN_OR_RETURN(budget.gpu_bytes, json_field_or<int64_t>(json, "gpu_memory_bytes", where, 0));
  if (budget.gpu_bytes < 0) {
    return invalid_argument(fmt::format("{}.gpu_memory_bytes is {}", where, budget.gpu_bytes),
                            "gpu_memory");
  }
  if (budget.gpu_bytes == 0) {
    BA_ASSIGN_OR_RETURN(budget.bytes, json_field<int64_t>(json, "memory_bytes", where));
  }
  BA_ASSIGN_OR_RETURN(budget.load.context, json_field<int64_t>(json, "context", where));
  BA_ASSIGN_OR_RETURN(budget.load.sequences,
                      json_field_or<int64_t>(json, "sequences", where, usual.sequences));
  BA_ASSIGN_OR_RETURN(budget.load.tensor_parallel,
                      json_field_or<int64_t>(json, "tp", where, usual.tensor_parallel));
  BA_ASSIGN_OR_RETURN(budget.load.block_tokens,
                      json_field_or<int64_t>(json, "block_tokens", where, usual.block_tokens));
  return budget;
}

}  // namespace bitalloc
