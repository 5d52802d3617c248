// What the memory plan needs to know of a model: before it is loaded, and once it is.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "common/model_files.h"
#include "worker/memory_plan.h"
#include "worker/models/decoder.h"

namespace bitalloc {

// Bytes at the widest moment of loading: all weights in a type of `element_bytes`, and beside them
// the largest tensor as it is in its file and the parts of the largest fused product.
// wide_output: a float32 copy of the output layer is made.
int64_t loading_bytes(const ModelFiles& files, int64_t element_bytes, bool wide_output);

// How logits and stacks of trials are cut; see ScorerOptions.
struct CutOptions {
  int64_t tile_bytes = 0;
  int64_t stack_bytes = 0;
};
// `model` as it is loaded: a tensor-parallel rank's own share.
NetworkShape network_shape(const Decoder& model, const CutOptions& cut);

}  // namespace bitalloc
