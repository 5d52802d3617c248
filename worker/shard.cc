#include "worker/shard.h"

#include <algorithm>

namespace bitalloc {
namespace {

Span kv_share(const ModelConfig& config, int rank, int size) {
  if (config.num_kv_heads >= size) return share(config.num_kv_heads, rank, size);
  return {rank / (size / config.num_kv_heads), 1};
}

}  // namespace

Span share(int64_t total, int rank, int size) {
  const int64_t least = total / size;
  const int64_t longer = total % size;
  return {rank * least + std::min<int64_t>(rank, longer), least + (rank < longer ? 1 : 0)};
}

Shard::Shard(const ModelConfig& config, Collective& group)
    : group(&group),
      heads(share(config.num_heads, group.rank(), group.size())),
      kv_heads(kv_share(config, group.rank(), group.size())),
      mlp(share(config.intermediate_size, group.rank(), group.size())),
      vocab(share(config.vocab_size, group.rank(), group.size())),
      longest_vocab(share(config.vocab_size, 0, group.size()).count) {}

}  // namespace bitalloc
