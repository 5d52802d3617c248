// FP8 E5M2, and FP8 with a scale for every token and head. E5M2's codes are those of ml_dtypes and
// torch for every bfloat16 input (tests/oracle/make_float_formats.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/oracle_cases.h"

namespace bitalloc {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Fp8E5m2, EncodesEveryBf16LikeMlDtypesAndTorch) {
  const std::vector<int> expected = read_codes("formats_e5m2.txt");
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint8_t code = e5m2_encode(bf16_decode({static_cast<uint16_t>(bits)})).bits;
    const bool right = expected[bits] < 0 ? (code & 0x7F) == kE5m2Nan : code == expected[bits];
    ASSERT_TRUE(right) << std::hex << "input " << bits << ": " << +code << ", expected "
                       << expected[bits];
  }
}

// The table of the OCP specification, worked by hand: (-1)^s · 1.m · 2^(e - 15).
TEST(Fp8E5m2, DecodesEveryCodeByItsFormula) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 2) & 31;
    const int mantissa = code & 3;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -16) : std::ldexp(4 + mantissa, exponent - 15 - 2);
    const float decoded = e5m2_decode({static_cast<uint8_t>(code)});
    if (exponent < 31) {
      EXPECT_EQ(decoded, (code & 0x80) ? -magnitude : magnitude) << code;
      EXPECT_EQ(e5m2_encode(decoded).bits, code);
    } else if (mantissa == 0) {
      EXPECT_EQ(decoded, (code & 0x80) ? -kInfinity : kInfinity);
    } else {
      EXPECT_TRUE(std::isnan(decoded));
    }
    EXPECT_EQ(std::signbit(decoded), code >= 0x80) << code;
  }
}

TEST(Fp8E5m2, InfinitySaturatesAndNanStays) {
  const auto out = fake_quantize(*parse_format("fp8_e5m2"), 57344,
                                 std::vector<float>{kInfinity, -kInfinity, 3e38f, 61440, kNan}, 5);
  EXPECT_THAT(std::vector<float>(out.begin(), out.end() - 1),
              testing::ElementsAre(57344, -57344, 57344, 57344));
  EXPECT_TRUE(std::isnan(out.back()));
}

TEST(Fp8E5m2, FakeQuantizationIsEncodingAndDecoding) {
  for (const float amax : {57344.0f, 3.7f, 1e-20f, 1e30f}) {
    const bool constant = amax == 57344.0f;
    const auto format = *parse_format(constant ? "fp8_e5m2" : "fp8_e5m2[scale=calibrated]");
    const Fp8Scale scale = fp8_e5m2_scale(amax);
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float x = bf16_decode({static_cast<uint16_t>(bits)});
      const Fp8E5m2 code = e5m2_encode(multiply_rounded(x, scale.forward));
      const float decoded = multiply_rounded(e5m2_decode(code), scale.inverse);
      const float out = fake_quantize(format, amax, std::vector<float>{x}, 1)[0];
      ASSERT_TRUE(std::isnan(x) ? std::isnan(out) && std::isnan(decoded)
                                : float_bits(out) == float_bits(decoded))
          << x << ": " << out << ", " << decoded;
    }
  }
}

// ---- a scale for every token and head ----

const Format kTokenHead = *parse_format("fp8_e4m3[granularity=token_head]");

std::vector<float> packed_and_unpacked(const std::vector<float>& in) {
  std::vector<Fp8E4m3> codes(in.size());
  const float scale = fp8_token_head_encode(in.data(), static_cast<int>(in.size()), codes.data());
  std::vector<float> out;
  for (const Fp8E4m3 code : codes) out.push_back(fp8_token_head_decode(code, scale));
  return out;
}

TEST(Fp8TokenHead, FakeQuantizationIsEncodingAndDecoding) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int head_dim : {1, 7, 20, 64, 80, 128, 256}) {
    for (int exponent = -140; exponent <= 120; exponent += 4) {
      std::vector<float> in(head_dim);
      for (float& x : in) x = std::ldexp(normal(random), exponent);
      if (exponent % 3 == 0) in[0] = -0.0f;
      const auto out = fake_quantize(kTokenHead, 0, in, head_dim);
      const auto unpacked = packed_and_unpacked(in);
      for (int i = 0; i < head_dim; ++i) {
        ASSERT_EQ(float_bits(out[i]), float_bits(unpacked[i])) << in[i];
      }
    }
  }
}

// By hand: with amax 448 the scale is 1. 17.5 lies between the codes 16 and 18, nearer to 18; 17 is
// a tie that goes to 16, the even one; 0.3 lies between 0.28125 and 0.3125.
TEST(Fp8TokenHead, ScalesByTheRowsMaximum) {
  const std::vector<float> in = {448, -17.5f, 17, 0.3f, 0};
  EXPECT_EQ(fake_quantize(kTokenHead, 0, in, 5), (std::vector<float>{448, -18, 16, 0.3125f, 0}));
  std::vector<float> half = in;
  for (float& x : half) x *= 0.5f;
  EXPECT_EQ(fake_quantize(kTokenHead, 0, half, 5), (std::vector<float>{224, -9, 8, 0.15625f, 0}));
}

// vLLM never lets a scale go below 1e-6: rows below that keep few bits, and then none.
TEST(Fp8TokenHead, TinyRowsHaveTheSmallestScale) {
  const float step = 1e-6f * 0x1p-9f;  // the smallest E4M3 number times the smallest scale
  EXPECT_EQ(fake_quantize(kTokenHead, 0, std::vector<float>{3 * step, step * 0.4f, 0}, 3),
            (std::vector<float>{3 * step, 0, 0}));
  std::vector<Fp8E4m3> codes(2);
  const float zeros[] = {0, 0};
  EXPECT_EQ(fp8_token_head_encode(zeros, 2, codes.data()), 1e-6f);
}

// vLLM's order of operations: x·(1/scale), where x/scale would sometimes give the next code.
TEST(Fp8TokenHead, MultipliesWithTheReciprocal) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  int other = 0;
  constexpr int kRows = 2000, kHeadDim = 64;
  for (int row = 0; row < kRows; ++row) {
    std::vector<float> in(kHeadDim);
    for (float& x : in) x = bf16_round(normal(random));
    const auto out = fake_quantize(kTokenHead, 0, in, kHeadDim);
    const float scale = fp8_token_head_scale(block_max(in.data(), kHeadDim));
    for (int i = 0; i < kHeadDim; ++i) {
      EXPECT_EQ(out[i], e4m3_round(in[i] * (1 / scale)) * scale);
      other += out[i] == e4m3_round(in[i] / scale) * scale ? 0 : 1;
    }
  }
  EXPECT_GT(other, 0);
  EXPECT_LT(other, kRows * kHeadDim / 1000) << "more than the rounding of a reciprocal explains";
}

TEST(Fp8TokenHead, NanAndInfinityMakeTheRowNan) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    const std::vector<float> in = {1, bad, 0, -3};
    EXPECT_THAT(fake_quantize(kTokenHead, 0, in, 4), testing::Each(testing::IsNan()));
    EXPECT_THAT(packed_and_unpacked(in), testing::Each(testing::IsNan()));
  }
}

}  // namespace
}  // namespace bitalloc
