// Llama: grouped-query attention with RoPE, RMSNorm before each block, SwiGLU; biases as
// configured.
#include "worker/models/families.h"

namespace bitalloc {

Layer llama_layer(const ModelConfig& config, int64_t index, const WeightScope& weights) {
  return build_layer(config, index, weights,
                     {.qkv_bias = config.qkv_bias,
                      .output_bias = config.o_bias,
                      .mlp_bias = config.mlp_bias,
                      .qk_norm = false});
}

}  // namespace bitalloc
