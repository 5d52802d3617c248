// Against vLLM's kernel restated in torch (tests/oracle/make_int_formats.py), and what must hold
// for any row.
#include "kernels/formats/int4_token_head.h"

#include <gtest/gtest.h>

#include "kernels/formats/packed_rows.h"

namespace bitalloc {
namespace {

std::vector<float> fake_quantized(std::vector<float> row) {
  ScalarGroup group(row.data(), static_cast<int>(row.size()));
  Int4TokenHead{}.fake_quantize(group);
  return row;
}

TEST(Int4TokenHead, EqualsTheKernelRestated) {
  const auto cases = packed_rows("int4_token_head");
  ASSERT_GE(cases.size(), 10u);
  for (const PackedRows& c : cases) {
    const auto in = packed_values<float>(c.input, c.count());
    const auto codes = packed_values<uint8_t>(c.codes, c.count());
    const auto scales = packed_values<uint32_t>(c.metadata, c.rows);
    const auto out = packed_values<float>(c.output, c.count());
    for (int row = 0; row < c.rows; ++row) {
      std::vector<uint8_t> own(c.head_dim);
      const float* values = in.data() + int64_t{row} * c.head_dim;
      const Int4TokenHeadScale scale = Int4TokenHead{}.encode(values, c.head_dim, own.data());
      EXPECT_EQ(scale.bits, scales[row]) << c.name;
      for (int k = 0; k < c.head_dim; ++k) {
        const int64_t i = int64_t{row} * c.head_dim + k;
        ASSERT_EQ(own[k], codes[i]) << c.name << " value " << in[i];
        ASSERT_TRUE(same(Int4TokenHead{}.decode(own[k], scale), out[i])) << c.name;
      }
    }
  }
}

TEST(Int4TokenHead, FakeQuantizationIsEncodingAndDecoding) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    const int size = 1 + static_cast<int>(seed * 37 % 130);
    const auto in = any_row(size, seed);
    const auto out = fake_quantized(in);
    std::vector<uint8_t> codes(size), bytes((size * 4 + 7) / 8);
    const Int4TokenHeadScale scale = Int4TokenHead{}.encode(in.data(), size, codes.data());
    pack_codes(codes.data(), size, 4, bytes.data());
    for (int i = 0; i < size; ++i) {
      const float value = Int4TokenHead{}.decode(unpack_code(bytes.data(), i, 4), scale);
      ASSERT_TRUE(same_number(out[i], value)) << "seed " << seed << ' ' << in[i];
      ASSERT_EQ(std::isfinite(out[i]), all_finite(in)) << "seed " << seed << ' ' << in[i];
    }
  }
}

TEST(Int4TokenHead, ErrorsStayWithinOneStep) {
  // Half a step of the code and half of the zero point, where 0 lies within the row; the scale's
  // last four bits, times at most 15 steps.
  std::mt19937 random(4);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int repetition = 0; repetition < 500; ++repetition) {
    std::vector<float> in(64);
    for (float& x : in) x = std::ldexp(uniform(random), repetition % 100 - 10);
    in[0] = -std::abs(in[0]);
    in[1] = std::abs(in[1]);
    const auto [lo, hi] = std::minmax_element(in.begin(), in.end());
    const float step = std::max((*hi - *lo) / 15, 1e-6f);
    const auto out = fake_quantized(in);
    for (size_t i = 0; i < in.size(); ++i) EXPECT_LE(std::abs(out[i] - in[i]), 1.0001f * step);
  }
}

TEST(Int4TokenHead, ARowOnOneSideOfZeroSaturates) {
  // By hand: range 1, step 1/15, zero point 0, code 15: 15·(1/15) but for the scale's last bits.
  const auto out = fake_quantized({10.0f, 11.0f});
  EXPECT_NEAR(out[0], 1.0f, 1e-5f);
  EXPECT_NEAR(out[1], 1.0f, 1e-5f);
}

TEST(Int4TokenHead, EveryCodeAndScaleDecodes) {
  std::mt19937 random(5);
  for (int i = 0; i < 10000; ++i) {
    const Int4TokenHeadScale scale = {static_cast<uint32_t>(random())};
    const float value = Int4TokenHead{}.decode(static_cast<uint8_t>(random()), scale);
    const bool finite = (scale.bits & kInfinityBits) != kInfinityBits;
    EXPECT_TRUE(!finite || !std::isnan(value)) << scale.bits;
  }
}

}  // namespace
}  // namespace bitalloc
