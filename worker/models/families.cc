#include "worker/models/families.h"

namespace bitalloc {
namespace {

using FamilyLayer = Layer (*)(const ModelConfig&, int64_t, const WeightScope&);

FamilyLayer layer_of(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama:
      return llama_layer;
    case ModelFamily::kMistral:
      return mistral_layer;
    case ModelFamily::kQwen2:
      return qwen2_layer;
    case ModelFamily::kQwen3:
      return qwen3_layer;
  }
  BA_CHECK(false, "unknown family");
}

}  // namespace

Decoder load_decoder(const ModelFiles& files, c10::Device device, c10::ScalarType dtype) {
  const FamilyLayer make = layer_of(files.config.family);
  return build_decoder(files.config, WeightScope(files, device, dtype),
                       [&](int64_t index, const WeightScope& weights) {
                         return make(files.config, index, weights);
                       });
}

}  // namespace bitalloc
