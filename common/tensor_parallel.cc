#include "common/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace bitalloc {
namespace {

bool divides(const ModelConfig& config, int ranks) {
  const bool heads = config.num_heads % ranks == 0;
  const bool kv_heads = config.num_kv_heads % ranks == 0 || ranks % config.num_kv_heads == 0;
  return heads && kv_heads;
}

}  // namespace

Status check_tensor_parallel(const ModelConfig& config, int ranks, const std::string& field) {
  if (ranks < 1 || ranks > kMaxTensorParallel) {
    return invalid_argument(
        fmt::format("{} ranks; there may be 1 to {}", ranks, kMaxTensorParallel), field);
  }
  if (divides(config, ranks)) return {};
  std::vector<int> possible;
  for (int count = 1; count <= std::min<int64_t>(config.num_heads, kMaxTensorParallel); ++count) {
    if (divides(config, count)) possible.push_back(count);
  }
  return unsupported(
      fmt::format("a model of {} attention heads and {} KV heads cannot be cut into {} shards",
                  config.num_heads, config.num_kv_heads, ranks),
      field, fmt::format("possible are {}", fmt::join(possible, ", ")));
}

}  // namespace bitalloc
