// Weights of an inspected model as tensors of the compute type, on the compute device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "common/model_files.h"

namespace bitalloc {

// y = x·Wᵀ + b. Every product with weights goes through here.
class Linear {
 public:
  Linear() = default;
  // weight: [out, in]; bias: [out], or undefined for none.
  Linear(at::Tensor weight, at::Tensor bias);

  // x: [..., in] -> [..., out].
  at::Tensor operator()(const at::Tensor& x) const;
  // residual + (*this)(x), in as few passes over memory as the type's roundings allow.
  at::Tensor plus(const at::Tensor& residual, const at::Tensor& x) const;

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }  // undefined for none
  int64_t out_features() const { return weight_.size(0); }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

// Reads tensors under a name prefix. REQUIRES: names exist, as inspect_model has checked.
class WeightScope {
 public:
  WeightScope(const ModelFiles& files, c10::Device device, c10::ScalarType dtype,
              std::string prefix = "");

  // The same with "`name`." added to the prefix.
  WeightScope operator/(const std::string& name) const;

  at::Tensor tensor(const std::string& name) const;
  // `name`.weight and, when `bias`, `name`.bias.
  Linear linear(const std::string& name, bool bias) const;
  // Several linears of the same input as one: their outputs side by side, in the order given.
  Linear linears(const std::vector<std::string>& names, bool bias) const;

 private:
  const ModelFiles& files_;
  c10::Device device_;
  c10::ScalarType dtype_;
  std::string prefix_;
};

}  // namespace bitalloc
