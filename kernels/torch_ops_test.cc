// The tensor functions: shapes, strides and types. Numbers are tested in formats_test and kl_test.
#include "kernels/torch_ops.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/fake_quant.h"

namespace bitalloc {
namespace {

const Format kFp8{FormatKind::kFp8E4m3};
const Format kNvfp4{FormatKind::kNvfp4};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

at::Tensor random(at::IntArrayRef sizes) {
  at::manual_seed(11);
  return at::randn(sizes);
}

TEST(FakeQuantize, Fp8EqualsTorchsOwnCast) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = (random({2, 3, 5, 64}) * 100).to(type);
    const at::Tensor expected = x.clamp(-448, 448).to(at::kFloat8_e4m3fn).to(type);
    const at::Tensor y = fake_quantize(x, kFp8, 448);
    EXPECT_TRUE(at::equal(y, expected)) << type;
    EXPECT_EQ(y.scalar_type(), type);
  }
}

// [batch, heads, tokens, head_dim] as a view of [batch, tokens, heads, head_dim]: no copy, and the
// result lies in memory as its input does.
TEST(FakeQuantize, KeepsTheStridesOfDenseTensors) {
  const at::Tensor x = random({2, 7, 3, 64}).transpose(1, 2);
  const at::Tensor y = fake_quantize(x, kNvfp4, 448);
  EXPECT_EQ(y.strides(), x.strides());
  EXPECT_TRUE(at::equal(y, fake_quantize(x.contiguous(), kNvfp4, 448)));
}

TEST(FakeQuantize, ReadsSlicesOfFusedProjections) {
  const at::Tensor qkv = random({6, 3 * 48});
  const at::Tensor k = qkv.narrow(1, 48, 48);
  EXPECT_TRUE(at::equal(fake_quantize(k, kNvfp4, 448), fake_quantize(k.contiguous(), kNvfp4, 448)));
  const at::Tensor heads = random({2, 5, 3 * 2, 20}).narrow(2, 2, 2).transpose(1, 2);
  EXPECT_TRUE(
      at::equal(fake_quantize(heads, kNvfp4, 448), fake_quantize(heads.contiguous(), kNvfp4, 448)));
}

TEST(FakeQuantize, BlocksRunAlongTheLastDimensionWhateverTheStrides) {
  const at::Tensor x = random({32, 48}).t();  // last dimension has stride 48
  EXPECT_TRUE(at::equal(fake_quantize(x, kNvfp4, 448), fake_quantize(x.contiguous(), kNvfp4, 448)));
  const at::Tensor expanded = random({1, 48}).expand({4, 48});
  EXPECT_TRUE(at::equal(fake_quantize(expanded, kNvfp4, 448),
                        fake_quantize(expanded.contiguous(), kNvfp4, 448)));
}

TEST(FakeQuantize, TakesVectorsAndEmptyTensors) {
  EXPECT_EQ(fake_quantize(random({33}), kNvfp4, 448).sizes(), at::IntArrayRef({33}));
  EXPECT_EQ(fake_quantize(random({0, 64}), kNvfp4, 448).sizes(), at::IntArrayRef({0, 64}));
  EXPECT_EQ(fake_quantize(random({2, 0}), kNvfp4, 448).sizes(), at::IntArrayRef({2, 0}));
}

TEST(FakeQuantize, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor x = random({1000, 64});
  const at::Tensor whole = fake_quantize(x, kNvfp4, 448);
  for (int64_t row : {0, 511, 512, 999}) {
    EXPECT_TRUE(at::equal(whole[row], fake_quantize(x[row], kNvfp4, 448)));
  }
}

TEST(AbsoluteMax, SeesEveryTypeAndNan) {
  at::Tensor x = random({3, 50}).t();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor y = x.to(type);
    EXPECT_EQ(absolute_max(y).item<float>(), y.abs().max().item<float>());
    EXPECT_EQ(absolute_max(y.narrow(0, 3, 9)).item<float>(),
              y.narrow(0, 3, 9).abs().max().item<float>());
  }
  x[3][1] = kNan;
  EXPECT_TRUE(std::isnan(absolute_max(x).item<float>()));
  EXPECT_EQ(absolute_max(at::empty({0})).item<float>(), 0);
}

// torch in float64: log_softmax, and the textbook sum.
at::Tensor kl_in_float64(const at::Tensor& reference, const at::Tensor& trial) {
  const at::Tensor log_p = at::log_softmax(reference.to(at::kDouble), -1);
  const at::Tensor log_q = at::log_softmax(trial.to(at::kDouble), -1);
  return (log_p.exp() * (log_p - log_q)).sum(-1);
}

TEST(KlRows, EqualsFloat64ForStackedCandidates) {
  const at::Tensor reference = random({5, 3000}) * 3;
  const at::Tensor trial = reference + at::randn({4, 5, 3000}) * 0.2;
  const at::Tensor expected = kl_in_float64(reference, trial);
  const at::Tensor stacked = kl_rows(reference, trial);
  EXPECT_EQ(stacked.sizes(), at::IntArrayRef({4, 5}));
  EXPECT_EQ(stacked.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::allclose(stacked, expected, 1e-5, 0));
  const at::Tensor flat = kl_rows(reference, trial.flatten(0, 1), log_sum_exp_rows(reference));
  EXPECT_TRUE(at::equal(flat, stacked.flatten()));
}

TEST(KlRows, ReadsRowsApart) {
  const at::Tensor wide = random({6, 200});
  const at::Tensor reference = wide.narrow(1, 0, 99);
  const at::Tensor trial = wide.narrow(1, 100, 99);
  EXPECT_TRUE(at::allclose(kl_rows(reference, trial), kl_in_float64(reference, trial), 1e-5, 0));
  EXPECT_EQ(kl_rows(reference.narrow(0, 0, 0), trial.narrow(0, 0, 0)).numel(), 0);
}

TEST(LogSumExpRows, EqualsTorchsInFloat64) {
  const at::Tensor logits = random({4, 1000}) * 5;
  EXPECT_TRUE(
      at::allclose(log_sum_exp_rows(logits), at::logsumexp(logits.to(at::kDouble), -1), 1e-7, 0));
}

TEST(KlRowsDeathTest, RefusesOtherShapesAndTypes) {
  EXPECT_DEATH(kl_rows(random({2, 5}), random({3, 5})), "k rows for each");
  EXPECT_DEATH(kl_rows(random({2, 5}), random({2, 6})), "share vocabulary");
  EXPECT_DEATH(kl_rows(random({2, 5}).to(at::kBFloat16), random({2, 5})), "float32");
}

// H of n by Sylvester's construction.
at::Tensor sylvester(int64_t n) {
  at::Tensor h = at::ones({1, 1});
  while (h.size(0) < n) h = at::cat({at::cat({h, h}, 1), at::cat({h, -h}, 1)}, 0);
  return h / std::sqrt(static_cast<double>(n));
}

TEST(Hadamard, IsSylvestersMatrixAndItsOwnInverse) {
  for (const int64_t n : {1, 2, 16, 64, 128, 256}) {
    const at::Tensor x = random({5, 3, n});
    EXPECT_LT((hadamard(x) - at::matmul(x, sylvester(n))).abs().max().item<float>(), 2e-6) << n;
    EXPECT_LT((hadamard(hadamard(x)) - x).abs().max().item<float>(), 2e-6) << n;
  }
}

TEST(Hadamard, RotatedFormatsQuantizeTheRotatedRows) {
  const at::Tensor x = random({7, 64});
  const at::Tensor h = sylvester(64);
  const Format format = *parse_format("nvfp4[rotate=hadamard]");
  const at::Tensor expected =
      at::matmul(fake_quantize(at::matmul(x, h), *parse_format("nvfp4"), 448), h);
  // A code may tip over where the two rotations differ in the last bit: few may.
  const at::Tensor apart = (fake_quantize(x, format, 448) - expected).abs() > 1e-5;
  EXPECT_LE(apart.any(-1).sum().item<int64_t>(), 1);
}

TEST(FakeQuantize, GroupsAlongTokensAreThoseOfEachChannel) {
  const at::Tensor x = random({2, 3, 100, 16});
  const at::Tensor y = fake_quantize(x, *parse_format("int4[group=32,axis=channel]"), 448);
  const Format rows = *parse_format("int4[group=32]");
  for (const int64_t begin : {0, 32, 64, 96}) {
    const int64_t size = std::min<int64_t>(32, 100 - begin);
    const at::Tensor group = x[1][2].narrow(0, begin, size).t().contiguous();
    EXPECT_TRUE(at::equal(y[1][2].narrow(0, begin, size).t(), fake_quantize(group, rows, 448)));
  }
}

}  // namespace
}  // namespace bitalloc
