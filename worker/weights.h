// Weights of an inspected model as tensors of the compute type, on the compute device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "common/model_files.h"
#include "worker/shard.h"

namespace bitalloc {

// y = x·Wᵀ + b. Every product with weights goes through here.
//
// A gathering one gets this rank's part of the inputs and holds the rows of W for its part of the
// outputs: ranks exchange their inputs, then their outputs. Every output is one product over all
// inputs, as in one process: the same bits. (Adding up the ranks' products, as is usual, rounds
// otherwise; quantization and bfloat16 make visible differences of that: see README.md.)
class Linear {
 public:
  Linear() = default;
  // weight: [out, in]; bias: [out], or undefined for none.
  Linear(at::Tensor weight, at::Tensor bias);
  // The gathering one of `group`, which lives as long as the network. weight, bias: the rows of
  // this rank's share of `out_features`.
  Linear(at::Tensor weight, at::Tensor bias, int64_t out_features, Collective& group);

  // x: [..., in] -> [..., out]. REQUIRES: not a gathering one.
  at::Tensor operator()(const at::Tensor& x) const;
  // residual + (*this)(x), in as few passes over memory as the type's roundings allow.
  // A gathering one: x is this rank's share of the inputs; residual and result are whole.
  at::Tensor plus(const at::Tensor& residual, const at::Tensor& x) const;

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }          // undefined for none
  int64_t out_features() const { return weight_.size(0); }  // of this rank

 private:
  at::Tensor plus_here(const at::Tensor& residual, const at::Tensor& x) const;

  at::Tensor weight_;
  at::Tensor bias_;
  Collective* group_ = nullptr;  // of a gathering one
  int64_t all_out_features_ = 0;
};

// Reads tensors under a name prefix, and of those that are cut only what this rank holds: other
// bytes of the mapped files are not touched. REQUIRES: names exist, as inspect_model has checked.
class WeightScope {
 public:
  // `bytes_read` grows by what is copied out of the files.
  WeightScope(const ModelFiles& files, c10::Device device, c10::ScalarType dtype,
              const Shard& shard, int64_t& bytes_read, std::string prefix = "");

  // The same with "`name`." added to the prefix.
  WeightScope operator/(const std::string& name) const;

  const Shard& shard() const { return shard_; }

  at::Tensor tensor(const std::string& name) const;
  // Some rows (the first dimension) of a matrix or a vector.
  at::Tensor rows(const std::string& name, Span rows) const;
  // Several linears of the same input as one: their outputs side by side, in the order given; of
  // each the outputs in its span.
  struct Part {
    std::string name;
    Span outputs;
  };
  Linear linears(const std::vector<Part>& parts, bool bias) const;
  // `name`.weight, and `name`.bias when `bias`: gathering when there are several ranks, which have
  // their shares of the inputs.
  Linear gathering(const std::string& name, bool bias) const;

 private:
  const TensorView& view(const std::string& name) const;

  const ModelFiles& files_;
  c10::Device device_;
  c10::ScalarType dtype_;
  const Shard& shard_;
  int64_t& bytes_read_;
  std::string prefix_;
};

}  // namespace bitalloc
