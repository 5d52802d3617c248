// Attention whose queries see some tokens as a cache stored them and the others as they were
// computed (kernels/formats/visibility.h): what token-by-token decoding gives, in one pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/kv_view.h"
#include "worker/memory_plan.h"

namespace bitalloc {

// q: [batch, heads, tokens, head_dim]; keys and values as in `seen`; a token attends to itself and
// to what is before it, `sliding_window` tokens in all (0: no limit). Positions are places in a
// sequence: padding may follow, not precede.
// Products, softmax and sums in float32, whatever type the tensors have; the result is rounded once
// to q's type. Returns [batch, heads, tokens, head_dim].
// Runs over one tile at a time, of one sequence: extra memory is mixed_attention_bytes
// (memory_plan.h), whatever the batch.
at::Tensor mixed_attention(const at::Tensor& q, const SeenKv& seen, int64_t sliding_window);

// The same in tiles of the caller's choice.
at::Tensor mixed_attention(const at::Tensor& q, const SeenKv& seen, int64_t sliding_window,
                           const MixedTile& tile);

}  // namespace bitalloc
