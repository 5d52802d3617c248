// Qwen3 (dense): RMSNorm over head_dim of q and k before RoPE; a head_dim of its own.
#include "worker/models/families.h"

namespace bitalloc {

Layer qwen3_layer(const ModelConfig& config, int64_t index, const WeightScope& weights) {
  return build_layer(config, index, weights,
                     {.qkv_bias = config.qkv_bias,
                      .output_bias = config.o_bias,
                      .mlp_bias = false,
                      .qk_norm = true});
}

}  // namespace bitalloc
