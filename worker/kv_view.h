// What attention sees of a layer's K and V. One attention code serves the reference, trials,
// calibration and validation: they differ in the view alone.
#pragma once

#include <ATen/core/Tensor.h>

namespace bitalloc {

// One layer's keys and values, [batch, kv_heads, tokens, head_dim] each.
struct KvPair {
  at::Tensor k;
  at::Tensor v;
};

// Thread rule: `see` may be called by several threads at once.
class KvView {
 public:
  virtual ~KvView() = default;
  // `exact`: what the layer computed, after q/k norm and RoPE, as an engine would be given to
  // store. Returns what its queries read back. A view that shows different things to different
  // queries (a full-precision window) needs a richer answer than one pair; this is where it goes.
  virtual KvPair see(int64_t layer, const KvPair& exact) const = 0;
};

// Every query sees exact keys and values: the reference.
class ExactKv final : public KvView {
 public:
  KvPair see(int64_t /*layer*/, const KvPair& exact) const override { return exact; }
};

}  // namespace bitalloc
