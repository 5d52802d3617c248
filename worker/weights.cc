#include "worker/weights.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "worker/ops.h"

namespace bitalloc {
namespace {

c10::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kF16:
      return at::kHalf;
    case Dtype::kBf16:
      return at::kBFloat16;
    default:
      BA_CHECK(false, "weights are F32, F16 or BF16: inspect_model refuses others");
  }
}

// Bytes of a mapped file may be unaligned for their type: they are copied as bytes.
at::Tensor copy_out(const std::byte* from, std::vector<int64_t> sizes, Dtype dtype) {
  auto bytes = at::empty({c10::multiply_integers(sizes) * dtype_size_bytes(dtype)}, at::kByte);
  std::memcpy(bytes.data_ptr(), from, static_cast<size_t>(bytes.numel()));
  return bytes.view(scalar_type(dtype)).view(sizes);
}

// The shares of all ranks, x [..., own share of `total`], side by side: [..., total].
at::Tensor gather_features(Collective& group, const at::Tensor& x, int64_t total) {
  const int64_t longest = share(total, 0, group.size()).count;
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::Tensor padded =
      x.size(-1) == longest ? rows : at::constant_pad_nd(rows, {0, longest - x.size(-1)});
  const at::Tensor all = group.all_gather(padded.contiguous());  // [ranks, rows, longest]
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    parts.push_back(all[rank].narrow(1, 0, share(total, rank, group.size()).count));
  }
  auto sizes = x.sizes().vec();
  sizes.back() = total;
  return at::cat(parts, 1).view(sizes);
}

}  // namespace

Linear::Linear(at::Tensor weight, at::Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {}

Linear::Linear(at::Tensor weight, at::Tensor bias, int64_t out_features, Collective& group)
    : weight_(std::move(weight)),
      bias_(std::move(bias)),
      group_(&group),
      all_out_features_(out_features) {}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return at::linear(x, weight_, bias_.defined() ? std::optional(bias_) : std::nullopt);
}

at::Tensor Linear::plus(const at::Tensor& residual, const at::Tensor& x) const {
  if (group_ == nullptr) return plus_here(residual, x);
  const Span outputs = share(all_out_features_, group_->rank(), group_->size());
  const at::Tensor inputs = gather_features(*group_, x, weight_.size(1));
  const at::Tensor own = plus_here(residual.narrow(-1, outputs.begin, outputs.count), inputs);
  return gather_features(*group_, own, all_out_features_);
}

at::Tensor Linear::plus_here(const at::Tensor& residual, const at::Tensor& x) const {
  // In 16-bit types the product is rounded before the sum: the models were trained that way.
  if (!fused_loops_apply(x) || bias_.defined()) return residual + (*this)(x);
  const at::Tensor sum = at::addmm(residual.reshape({-1, out_features()}),
                                   x.reshape({-1, weight_.size(1)}), weight_.t());
  return sum.view(residual.sizes());
}

WeightScope::WeightScope(const ModelFiles& files, c10::Device device, c10::ScalarType dtype,
                         const Shard& shard, int64_t& bytes_read, std::string prefix)
    : files_(files),
      device_(device),
      dtype_(dtype),
      shard_(shard),
      bytes_read_(bytes_read),
      prefix_(std::move(prefix)) {}

WeightScope WeightScope::operator/(const std::string& name) const {
  return {files_, device_, dtype_, shard_, bytes_read_, prefix_ + name + "."};
}

const TensorView& WeightScope::view(const std::string& name) const {
  const TensorView* view = files_.tensors->find(prefix_ + name);
  BA_CHECK(view != nullptr, "no tensor " + prefix_ + name + ": inspect_model must come first");
  return *view;
}

at::Tensor WeightScope::tensor(const std::string& name) const {
  return rows(name, {0, view(name).shape.front()});
}

at::Tensor WeightScope::rows(const std::string& name, Span rows) const {
  const TensorView& from = view(name);
  auto sizes = from.shape;
  sizes.front() = rows.count;
  const auto row_bytes = static_cast<int64_t>(from.bytes.size()) / from.shape.front();
  bytes_read_ += rows.count * row_bytes;
  return copy_out(from.bytes.data() + rows.begin * row_bytes, sizes, from.dtype)
      .to(device_, dtype_);
}

Linear WeightScope::linears(const std::vector<Part>& parts, bool bias) const {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (const auto& [name, outputs] : parts) {
    weights.push_back(rows(name + ".weight", outputs));
    if (bias) biases.push_back(rows(name + ".bias", outputs));
  }
  const auto joined = [](const std::vector<at::Tensor>& all) {
    return all.size() == 1 ? all.front() : at::cat(all);
  };
  return {joined(weights), bias ? joined(biases) : at::Tensor()};
}

Linear WeightScope::gathering(const std::string& name, bool bias) const {
  const int64_t outputs = view(name + ".weight").shape.front();
  Collective& group = *shard_.group;
  const Span own = share(outputs, group.rank(), group.size());
  const at::Tensor weight = rows(name + ".weight", own);
  const at::Tensor added = bias ? rows(name + ".bias", own) : at::Tensor();
  return group.is_single() ? Linear(weight, added) : Linear(weight, added, outputs, group);
}

}  // namespace bitalloc
