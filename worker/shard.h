// Which part of a network a rank holds: attention and KV heads, the width of the MLP, and the
// vocabulary are cut into as many pieces as there are ranks (Shoeybi et al., Megatron-LM,
// arXiv 1909.08053). Family files know nothing of it.
#pragma once

#include <cstdint>

#include "common/model_config.h"
#include "worker/collective.h"

namespace bitalloc {

// Neighbouring indices.
struct Span {
  int64_t begin = 0;
  int64_t count = 0;
};

// Rank `rank`'s share of `total` things over `size` ranks; the first ones get one more where they
// cannot be equal.
Span share(int64_t total, int rank, int size);

// REQUIRES: check_tensor_parallel(config, group.size()) is ok.
struct Shard {
  Shard() = default;
  // `group` lives as long as the network.
  Shard(const ModelConfig& config, Collective& group);

  Collective* group = &single_rank();
  Span heads;     // of queries
  Span kv_heads;  // of keys and values; several ranks hold the same one when there are too few
  Span mlp;       // outputs of gate and up
  Span vocab;     // rows of embedding and output layer
  int64_t longest_vocab = 0;  // of any rank: what is sized by the vocabulary must be alike on all
};

}  // namespace bitalloc
