#include "worker/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/cpu_ops.h"

namespace bitalloc {
namespace {

// Rows that make a piece worth a thread: some 32k elements.
int64_t grain_rows(int64_t width) { return std::max<int64_t>(1, 32768 / width); }

at::Tensor fused_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const int64_t width = x.size(-1);
  const at::Tensor rows = x.reshape({-1, width});
  at::Tensor out = at::empty(x.sizes(), x.options());
  const float* from = rows.const_data_ptr<float>();
  const float* scale = weight.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, rows.size(0), grain_rows(width), [&](int64_t begin, int64_t end) {
    rms_norm_cpu(from + begin * rows.stride(0), end - begin, width, rows.stride(0), scale,
                 static_cast<float>(eps), to + begin * width);
  });
  return out;
}

at::Tensor fused_silu_multiply(const at::Tensor& gate_up) {
  const int64_t features = gate_up.size(-1) / 2;
  auto sizes = gate_up.sizes().vec();
  sizes.back() = features;
  at::Tensor out = at::empty(sizes, gate_up.options());
  const float* from = gate_up.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, out.numel() / features, grain_rows(features),
                   [&](int64_t begin, int64_t end) {
                     silu_multiply_cpu(from + begin * 2 * features, end - begin, features,
                                       to + begin * features);
                   });
  return out;
}

}  // namespace

bool fused_loops_apply(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && !c10::GradMode::is_enabled();
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (fused_loops_apply(x) && x.stride(-1) == 1) return fused_rms_norm(x, weight, eps);
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
  if (fused_loops_apply(gate_up) && gate_up.is_contiguous()) return fused_silu_multiply(gate_up);
  const int64_t features = gate_up.size(-1) / 2;
  return at::silu(gate_up.narrow(-1, 0, features)) * gate_up.narrow(-1, features, features);
}

}  // namespace bitalloc
