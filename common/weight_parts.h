// The identity of a model's weights, found by several processes that read a part of the bytes each.
#pragma once

#include <string>
#include <vector>

#include "common/model_files.h"

namespace bitalloc {

// Reads some of the tensors (about 1/parts of all bytes), looks for NaN and infinity, and returns
// their hashes as text. `files` may be inspected without read_weights. Errors: kInvalidArgument
// naming file and tensor.
Result<std::string> hash_weight_part(const ModelFiles& files, int part, int parts, int threads);

// `files.weights_sha256` from the texts of all parts, in any order. Errors: kMismatch when they are
// not the parts of one model.
Result<std::string> join_weight_parts(const ModelFiles& files,
                                      const std::vector<std::string>& parts);

}  // namespace bitalloc
