// The fused loops against ATen's own operators, on widths with and without a tail.
#include "worker/ops.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "worker/cpu_ops.h"

namespace bitalloc {
namespace {

void expect_near(const at::Tensor& ours, const at::Tensor& expected, double relative) {
  ASSERT_EQ(ours.sizes(), expected.sizes());
  const at::Tensor wide = expected.to(at::kDouble);
  const double error =
      ((ours.to(at::kDouble) - wide).abs() / (wide.abs() + 1e-3)).max().item<double>();
  EXPECT_FALSE(!(error <= relative)) << error;
}

class FusedLoops : public testing::TestWithParam<int64_t> {
 protected:
  const c10::InferenceMode guard_;
};

TEST_P(FusedLoops, RmsNorm) {
  at::manual_seed(1);
  const int64_t width = GetParam();
  const at::Tensor x = at::randn({3, 5, width}) * 7;
  const at::Tensor weight = at::randn({width});
  ASSERT_TRUE(fused_loops_apply(x));
  const at::Tensor expected =
      at::rms_norm(x.to(at::kDouble), {width}, weight.to(at::kDouble), 1e-5);
  expect_near(rms_norm(x, weight, 1e-5), expected, 1e-5);
  // Rows of a wider tensor.
  const at::Tensor wide = at::randn({4, width + 3}).narrow(1, 0, width);
  expect_near(rms_norm(wide, weight, 1e-5),
              at::rms_norm(wide.to(at::kDouble), {width}, weight.to(at::kDouble), 1e-5), 1e-5);
}

TEST_P(FusedLoops, SiluMultiply) {
  at::manual_seed(2);
  const int64_t width = GetParam();
  const at::Tensor gate_up = at::randn({6, 2 * width}) * 30;
  gate_up[0].fill_(-300.0);  // e^300 is beyond float32: silu is 0 there
  gate_up[1].fill_(300.0);
  const at::Tensor wide = gate_up.to(at::kDouble);
  expect_near(silu_multiply(gate_up),
              at::silu(wide.narrow(1, 0, width)) * wide.narrow(1, width, width), 1e-5);
}

TEST_P(FusedLoops, NormAndRope) {
  at::manual_seed(3);
  const int64_t head_dim = 2 * GetParam();
  const int64_t tokens = 4;
  const int64_t heads = 3;
  // [sequences × tokens, 5 columns of something else | heads × head_dim]
  const at::Tensor rows = at::randn({2 * tokens, 5 + heads * head_dim});
  const at::Tensor before = rows.clone();
  const at::Tensor angles = at::randn({tokens, head_dim / 2});
  const at::Tensor cos = at::cat({angles, angles}, 1).cos();
  const at::Tensor sin = at::cat({angles, angles}, 1).sin();
  const at::Tensor weight = at::randn({head_dim});
  for (const bool with_norm : {false, true}) {
    rows.copy_(before);
    const HeadSpan span{5, heads, with_norm ? weight.const_data_ptr<float>() : nullptr, 1e-6F};
    norm_rope_cpu(rows.mutable_data_ptr<float>(), 2 * tokens, rows.size(1), tokens, head_dim, span,
                  cos.const_data_ptr<float>(), sin.const_data_ptr<float>());
    at::Tensor x = before.narrow(1, 5, heads * head_dim).to(at::kDouble);
    x = x.reshape({2, tokens, heads, head_dim});
    if (with_norm) x = at::rms_norm(x, {head_dim}, weight.to(at::kDouble), 1e-6);
    const at::Tensor low = x.narrow(-1, 0, head_dim / 2);
    const at::Tensor high = x.narrow(-1, head_dim / 2, head_dim / 2);
    const at::Tensor expected = x * cos.unsqueeze(1) + at::cat({-high, low}, -1) * sin.unsqueeze(1);
    expect_near(rows.narrow(1, 5, heads * head_dim).reshape(expected.sizes()), expected, 1e-4);
    EXPECT_TRUE(at::equal(rows.narrow(1, 0, 5), before.narrow(1, 0, 5)));
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, FusedLoops, testing::Values(1, 5, 16, 33, 64, 131, 576));

TEST(Ops, GradientsTakeAtenOperators) {
  const at::Tensor x = at::randn({2, 8}).requires_grad_(true);
  EXPECT_FALSE(fused_loops_apply(x));
  rms_norm(x, at::ones({8}), 1e-6).sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace bitalloc
