// Mistral: Llama without any bias; all layers have a sliding window, or none
// (config.sliding_window).
#include "worker/models/families.h"

namespace bitalloc {

Layer mistral_layer(const ModelConfig& config, int64_t index, const WeightScope& weights) {
  return build_layer(config, index, weights, LayerTraits{});
}

}  // namespace bitalloc
