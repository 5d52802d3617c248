// Qwen2: Llama with biases on q, k and v alone; upper layers may have a sliding window.
#include "worker/models/families.h"

namespace bitalloc {

Layer qwen2_layer(const ModelConfig& config, int64_t index, const WeightScope& weights) {
  return build_layer(config, index, weights,
                     {.qkv_bias = true, .output_bias = false, .mlp_bias = false, .qk_norm = false});
}

}  // namespace bitalloc
