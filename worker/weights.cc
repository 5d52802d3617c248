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

}  // namespace

Linear::Linear(at::Tensor weight, at::Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return at::linear(x, weight_, bias_.defined() ? std::optional(bias_) : std::nullopt);
}

at::Tensor Linear::plus(const at::Tensor& residual, const at::Tensor& x) const {
  // In 16-bit types the product is rounded before the sum: the models were trained that way.
  if (!fused_loops_apply(x) || bias_.defined()) return residual + (*this)(x);
  const at::Tensor sum = at::addmm(residual.reshape({-1, out_features()}),
                                   x.reshape({-1, weight_.size(1)}), weight_.t());
  return sum.view(residual.sizes());
}

WeightScope::WeightScope(const ModelFiles& files, c10::Device device, c10::ScalarType dtype,
                         std::string prefix)
    : files_(files), device_(device), dtype_(dtype), prefix_(std::move(prefix)) {}

WeightScope WeightScope::operator/(const std::string& name) const {
  return {files_, device_, dtype_, prefix_ + name + "."};
}

at::Tensor WeightScope::tensor(const std::string& name) const {
  const TensorView* view = files_.tensors->find(prefix_ + name);
  BA_CHECK(view != nullptr, "no tensor " + prefix_ + name + ": inspect_model must come first");
  // from_blob only reads; the copy below is what lives on. Mapped bytes may be unaligned for their
  // type, so they are first copied as bytes.
  auto bytes = at::empty({static_cast<int64_t>(view->bytes.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), view->bytes.data(), view->bytes.size());
  return bytes.view(scalar_type(view->dtype)).view(view->shape).to(device_, dtype_);
}

Linear WeightScope::linear(const std::string& name, bool bias) const {
  return {tensor(name + ".weight"), bias ? tensor(name + ".bias") : at::Tensor()};
}

Linear WeightScope::linears(const std::vector<std::string>& names, bool bias) const {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (const auto& name : names) {
    weights.push_back(tensor(name + ".weight"));
    if (bias) biases.push_back(tensor(name + ".bias"));
  }
  return {at::cat(weights), bias ? at::cat(biases) : at::Tensor()};
}

}  // namespace bitalloc
