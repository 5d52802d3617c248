#include "worker/ops.h"

#include <ATen/ATen.h>

namespace bitalloc {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor variance = wide.pow(2).mean(-1, /*keepdim=*/true);
  return weight * (wide * at::rsqrt(variance + eps)).to(x.scalar_type());
}

at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor rotated =
      at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, /*dim=*/-1);
  return x * cos + rotated * sin;
}

at::Tensor silu_multiply(const at::Tensor& gate_up) {
  const int64_t features = gate_up.size(-1) / 2;
  return at::silu(gate_up.narrow(-1, 0, features)) * gate_up.narrow(-1, features, features);
}

}  // namespace bitalloc
