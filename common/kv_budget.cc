#include "common/kv_budget.h"

namespace bitalloc {

Json to_json(const KvBudget& budget) {
  return {{"memory_bytes", budget.bytes},
          {"context", budget.load.context},
          {"sequences", budget.load.sequences},
          {"tp", budget.load.tensor_parallel},
          {"block_tokens", budget.load.block_tokens}};
}

Result<KvBudget> kv_budget_from_json(const Json& json, const std::string& where) {
  KvBudget budget;
  const KvLoad usual;
  BA_ASSIGN_OR_RETURN(budget.bytes, json_field<int64_t>(json, "memory_bytes", where));
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
