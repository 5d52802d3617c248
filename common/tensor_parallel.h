// Whether a network can be cut over several ranks: the rule that the command line, which has no
// LibTorch, and the worker share.
#pragma once

#include "common/model_config.h"
#include "common/status.h"

namespace bitalloc {

inline constexpr int kMaxTensorParallel = 64;

// Attention heads must divide among the ranks; so must KV heads, or each of them has a whole number
// of ranks. Errors: kUnsupported naming the numbers, kInvalidArgument for a count of ranks that is
// not 1 … kMaxTensorParallel. `field`: what the user gave.
Status check_tensor_parallel(const ModelConfig& config, int ranks, const std::string& field);

}  // namespace bitalloc
