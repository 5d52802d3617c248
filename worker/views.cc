#include "worker/views.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kernels/torch_ops.h"

namespace bitalloc {

namespace {

// x [sequences, heads, tokens, head_dim] with each sequence's last real token in the place of the
// padding behind it: groups along tokens then find the extremes of real ones.
at::Tensor last_repeated(const at::Tensor& x, const at::Tensor& mask) {
  if (mask.all().item<bool>()) return x;
  const at::Tensor last = (mask.sum(-1, /*keepdim=*/true) - 1).clamp_min(0);
  const at::Tensor place = at::minimum(at::arange(x.size(2), last.options()).unsqueeze(0), last);
  return x.gather(2, place.view({x.size(0), 1, x.size(2), 1}).expand_as(x));
}

}  // namespace

at::Tensor QuantizedSides::side(const at::Tensor& exact, const Format& format, float amax,
                                std::map<Format, at::Tensor>& known) {
  // bf16 is the reference's own precision, whatever type it computes in: nothing is rounded.
  if (format.kind == FormatKind::kBf16) return exact;
  Format as_stored = format;  // alike whichever queries see it
  as_stored.see = See::kAll;
  as_stored.window = 0;
  as_stored.prefill = 0;
  at::Tensor& stored = known[as_stored];
  if (!stored.defined()) {
    const bool along_tokens = as_stored.axis == Axis::kChannel;
    stored = fake_quantize(along_tokens ? last_repeated(exact, mask_) : exact, as_stored, amax);
  }
  return stored;
}

SeenKv QuantizedSides::see(const Candidate& candidate) {
  KvPair stored{side(exact_.k, candidate.k, site_.k_amax, known_k_),
                side(exact_.v, candidate.v, site_.v_amax, known_v_)};
  return {std::move(stored), exact_, visibility_of(candidate.k), visibility_of(candidate.v)};
}

SeenKv AssignedKv::see(int64_t layer, const KvPair& exact) const {
  const auto at = static_cast<size_t>(layer);
  return QuantizedSides(exact, sites_[at], mask_).see(assignment_[at]);
}

CalibratingKv::CalibratingKv(const at::Tensor& mask, std::vector<KvAmax>& amax) : amax_(amax) {
  if (!mask.all().item<bool>()) padding_ = (~mask).unsqueeze(1).unsqueeze(-1);
}

SeenKv CalibratingKv::see(int64_t layer, const KvPair& exact) const {
  const auto largest = [&](const at::Tensor& x) {
    const at::Tensor real = padding_.defined() ? x.masked_fill(padding_, 0.0) : x;
    return absolute_max(real).item<float>();
  };
  KvAmax& amax = amax_[static_cast<size_t>(layer)];
  const auto grow = [](float& so_far, float value) {
    // A comparison with NaN is false: keep it, so that the caller sees it.
    if (!(value <= so_far)) so_far = value;
  };
  grow(amax.k, largest(exact.k));
  grow(amax.v, largest(exact.v));
  return exact;
}

}  // namespace bitalloc
