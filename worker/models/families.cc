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

Decoder load_decoder(const ModelFiles& files, c10::Device device, c10::ScalarType dtype,
                     Collective& group) {
  const FamilyLayer make = layer_of(files.config.family);
  const Shard shard(files.config, group);
  int64_t bytes_read = 0;
  Decoder decoder =
      build_decoder(files.config, WeightScope(files, device, dtype, shard, bytes_read),
                    [&](int64_t index, const WeightScope& weights) {
                      return make(files.config, index, weights);
                    });
  decoder.weight_bytes_read = bytes_read;
  return decoder;
}

}  // namespace bitalloc
