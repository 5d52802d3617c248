// What attention sees of a layer's K and V. One attention code serves the reference, trials,
// calibration and validation: they differ in the view alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "kernels/formats/visibility.h"

namespace bitalloc {

// One layer's keys and values, [batch, kv_heads, tokens, head_dim] each.
struct KvPair {
  at::Tensor k;
  at::Tensor v;
};

// What the queries of a layer see: `stored` or `exact` tokens, by the rules of the two sides.
struct SeenKv {
  SeenKv(KvPair stored_pair) : stored(std::move(stored_pair)) {}  // every query sees these
  SeenKv(KvPair stored_pair, KvPair exact_pair, const Visibility& k_rule, const Visibility& v_rule)
      : stored(std::move(stored_pair)), exact(std::move(exact_pair)), k(k_rule), v(v_rule) {}

  bool alike_for_all() const { return k.see == See::kAll && v.see == See::kAll; }

  KvPair stored;
  KvPair exact;  // undefined where alike_for_all
  Visibility k;
  Visibility v;
};

// Thread rule: `see` may be called by several threads at once.
class KvView {
 public:
  virtual ~KvView() = default;
  // `exact`: what the layer computed, after q/k norm and RoPE, as an engine would be given to
  // store. Returns what its queries read back.
  virtual SeenKv see(int64_t layer, const KvPair& exact) const = 0;
};

// Every query sees exact keys and values: the reference.
class ExactKv final : public KvView {
 public:
  SeenKv see(int64_t /*layer*/, const KvPair& exact) const override { return exact; }
};

}  // namespace bitalloc
