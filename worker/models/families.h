// The model families: each says what one layer of its network is, nothing else.
#pragma once

#include "worker/models/decoder.h"

namespace bitalloc {

// `weights`: the scope of the layer ("model.layers.N.").
Layer llama_layer(const ModelConfig& config, int64_t index, const WeightScope& weights);
Layer mistral_layer(const ModelConfig& config, int64_t index, const WeightScope& weights);
Layer qwen2_layer(const ModelConfig& config, int64_t index, const WeightScope& weights);
Layer qwen3_layer(const ModelConfig& config, int64_t index, const WeightScope& weights);

// The network of `files` on a device, in a compute type: the shard of this rank of `group`, which
// must live as long. REQUIRES: check_tensor_parallel(files.config, group.size()) is ok.
Decoder load_decoder(const ModelFiles& files, c10::Device device, c10::ScalarType dtype,
                     Collective& group = single_rank());

}  // namespace bitalloc
