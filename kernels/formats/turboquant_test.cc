// Against vLLM's kernels restated in torch (tests/oracle/make_int_formats.py), and what must hold
// for any row.
#include "kernels/formats/turboquant.h"

#include <gtest/gtest.h>

#include "kernels/formats/hadamard.h"
#include "kernels/formats/packed_rows.h"

namespace bitalloc {
namespace {

template <typename Numerics>
std::vector<float> fake_quantized(const Numerics& numerics, std::vector<float> row) {
  ScalarGroup group(row.data(), static_cast<int>(row.size()));
  numerics.fake_quantize(group);
  return row;
}

std::vector<float> rotated(std::vector<float> row) {
  const auto size = static_cast<int>(row.size());
  hadamard_row(row.data(), size, hadamard_factor(size));
  return row;
}

TEST(TurboQuant, TheCodebookIsLloydMax) {
  const auto cases = packed_rows("turboquant_codebook");
  ASSERT_EQ(cases.size(), 6u);
  for (const PackedRows& c : cases) {
    const TurboQuantKey key = turboquant_key(c.head_dim, c.bits, true);
    const auto wanted = packed_values<float>(c.output, key.levels);
    for (int i = 0; i < key.levels; ++i) {
      EXPECT_NEAR(key.centroids[i], wanted[i], 2e-7f * std::abs(wanted[i]))
          << c.bits << " bits, head_dim " << c.head_dim;
    }
  }
  // The published optimum for N(0, 1) and 8 levels (Max, 1960): 0.2451, 0.7560, 1.3439, 2.1520. The
  // engine stops at a fixed tolerance, a little before it.
  const TurboQuantKey key = turboquant_key(64, 3, true);
  const float published[] = {0.2451f, 0.7560f, 1.3439f, 2.1520f};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(8 * key.centroids[4 + i], published[i], 2e-3f);
}

// Sums and rotations run in another order there: an element at a midpoint may fall to the other
// side.
constexpr double kShareOfTies = 1e-3;

TEST(TurboQuant, KeysEqualTheKernelRestated) {
  const auto cases = packed_rows("turboquant_key");
  ASSERT_GE(cases.size(), 12u);
  int64_t differing = 0, total = 0;
  for (const PackedRows& c : cases) {
    const TurboQuantKey key = turboquant_key(c.head_dim, c.bits, true);
    const auto in = packed_values<float>(c.input, c.count());
    const auto codes = packed_values<uint8_t>(c.codes, c.count());
    const auto norms = packed_values<uint16_t>(c.metadata, c.rows);
    const auto out = packed_values<float>(c.output, c.count());
    for (int row = 0; row < c.rows; ++row) {
      const auto begin = in.begin() + int64_t{row} * c.head_dim;
      const auto y = rotated({begin, begin + c.head_dim});
      std::vector<uint8_t> own(c.head_dim);
      const uint16_t norm = key.encode(y.data(), c.head_dim, own.data());
      EXPECT_LE(std::abs(int{norm} - int{norms[row]}), 1) << c.name;
      bool equal = norm == norms[row];
      for (int k = 0; k < c.head_dim; ++k) {
        const int apart = std::abs(int{own[k]} - int{codes[int64_t{row} * c.head_dim + k]});
        // A row of equal values has a transform of zeros but for one, up to the last bit: which of
        // the two middle codes they get is chance.
        const int counted = c.name == "constant" ? 0 : apart;
        EXPECT_LE(counted, 1) << c.name;
        differing += counted;
        equal = equal && apart == 0;
      }
      total += c.head_dim;
      if (!equal) continue;
      const auto back = rotated(fake_quantized(key, y));
      const float close = 1e-6f * fp16_decode(norm);
      for (int k = 0; k < c.head_dim; ++k) {
        EXPECT_NEAR(back[k], out[int64_t{row} * c.head_dim + k], close) << c.name;
      }
    }
  }
  EXPECT_LE(differing, kShareOfTies * static_cast<double>(total));
  std::printf("%ld of %ld codes differ by one\n", static_cast<long>(differing),
              static_cast<long>(total));
}

TEST(TurboQuant, ValuesEqualTheKernelRestated) {
  const auto cases = packed_rows("turboquant_value");
  ASSERT_GE(cases.size(), 20u);
  for (const PackedRows& c : cases) {
    const TurboQuantValue format{static_cast<float>((1 << c.bits) - 1)};
    const auto in = packed_values<float>(c.input, c.count());
    const auto codes = packed_values<uint8_t>(c.codes, c.count());
    const auto metadata = packed_values<uint16_t>(c.metadata, 2 * c.rows);
    const auto out = packed_values<float>(c.output, c.count());
    for (int row = 0; row < c.rows; ++row) {
      std::vector<uint8_t> own(c.head_dim);
      const auto stored =
          format.encode(in.data() + int64_t{row} * c.head_dim, c.head_dim, own.data());
      EXPECT_EQ(stored.scale, metadata[2 * row]) << c.name;
      EXPECT_EQ(stored.zero, metadata[2 * row + 1]) << c.name;
      for (int k = 0; k < c.head_dim; ++k) {
        const int64_t i = int64_t{row} * c.head_dim + k;
        ASSERT_EQ(own[k], codes[i]) << c.name << ' ' << in[i];
        ASSERT_TRUE(same(format.decode(own[k], stored), out[i])) << c.name << ' ' << in[i];
      }
    }
  }
}

TEST(TurboQuant, FakeQuantizationIsEncodingAndDecoding) {
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    const int size = 1 + static_cast<int>(seed * 37 % 130);
    const int bits = 3 + static_cast<int>(seed % 2);
    const auto in = any_row(size, seed);
    std::vector<uint8_t> codes(size), bytes((size * bits + 7) / 8);
    const auto repack = [&] {
      pack_codes(codes.data(), size, bits, bytes.data());
      for (int i = 0; i < size; ++i) codes[i] = unpack_code(bytes.data(), i, bits);
    };

    static const TurboQuantKey keys[] = {turboquant_key(64, 3, true), turboquant_key(64, 4, false)};
    const TurboQuantKey& key = keys[bits - 3];
    std::vector<float> decoded(size);
    const uint16_t norm = key.encode(in.data(), size, codes.data());
    repack();
    key.decode(codes.data(), size, norm, decoded.data());
    const auto key_out = fake_quantized(key, in);

    const TurboQuantValue value{static_cast<float>((1 << bits) - 1)};
    const auto stored = value.encode(in.data(), size, codes.data());
    repack();
    const auto value_out = fake_quantized(value, in);
    for (int i = 0; i < size; ++i) {
      ASSERT_TRUE(same_number(key_out[i], decoded[i])) << "seed " << seed << ' ' << in[i];
      ASSERT_TRUE(same_number(value_out[i], value.decode(codes[i], stored))) << "seed " << seed;
      ASSERT_EQ(std::isfinite(key_out[i]), all_finite(in)) << "seed " << seed << ' ' << in[i];
      ASSERT_EQ(std::isfinite(value_out[i]), all_finite(in)) << "seed " << seed << ' ' << in[i];
    }
  }
}

TEST(TurboQuant, ValueErrorsStayWithinHalfAStep) {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const float levels : {7.0f, 15.0f}) {
    for (int repetition = 0; repetition < 300; ++repetition) {
      std::vector<float> in(64);
      for (float& x : in) x = std::ldexp(uniform(random), repetition % 20 - 8);
      const auto [lo, hi] = std::minmax_element(in.begin(), in.end());
      // Half a step; scale and zero in 11 bits, the scale up to `levels` times.
      const float bound = (*hi - *lo) / levels / 2 + (*hi - *lo + std::abs(*lo)) / 2000;
      const auto out = fake_quantized(TurboQuantValue{levels}, in);
      for (size_t i = 0; i < in.size(); ++i) EXPECT_LE(std::abs(out[i] - in[i]), bound);
    }
  }
}

TEST(TurboQuant, KeyErrorsAreThoseOfLloydMax) {
  // Published distortions of the optimal quantizers of N(0, 1) (Max, 1960): 0.03454 for 8 levels,
  // 0.009497 for 16. With the norm corrected, of the same size.
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (const auto& [bits, distortion] : {std::pair{3, 0.03454}, std::pair{4, 0.009497}}) {
    const TurboQuantKey key = turboquant_key(128, bits, false);
    double errors = 0, squares = 0;
    for (int repetition = 0; repetition < 500; ++repetition) {
      std::vector<float> in(128);
      for (float& x : in) x = normal(random);
      const auto out = fake_quantized(key, in);
      for (size_t i = 0; i < in.size(); ++i) {
        errors += (out[i] - in[i]) * (out[i] - in[i]);
        squares += in[i] * in[i];
      }
    }
    EXPECT_NEAR(errors / squares, distortion, 0.05 * distortion) << bits;
  }
}

TEST(TurboQuant, EveryHalfDecodesAndEncodes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = fp16_decode(static_cast<uint16_t>(bits));
    const bool nan = (bits & 0x7FFF) > 0x7C00;
    ASSERT_EQ(std::isnan(value), nan) << bits;
    if (nan) continue;
    ASSERT_EQ(fp16_encode(value), bits);
    _Float16 peer;  // the compiler's own
    const auto half = static_cast<uint16_t>(bits);
    std::memcpy(&peer, &half, sizeof peer);
    ASSERT_EQ(float_bits(static_cast<float>(peer)), float_bits(value)) << bits;
  }
}

TEST(TurboQuant, EveryRowOfBytesDecodes) {
  std::mt19937 random(7);
  const TurboQuantKey key = turboquant_key(64, 3, true);
  for (int repetition = 0; repetition < 2000; ++repetition) {
    std::vector<uint8_t> codes(64);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
    std::vector<float> values(64);
    const auto norm = static_cast<uint16_t>(random());
    key.decode(codes.data(), 64, norm, values.data());
    EXPECT_EQ(std::isfinite(values[0]), (norm & 0x7C00) != 0x7C00);
    const TurboQuantValueScale row = {static_cast<uint16_t>(random()), 0};
    const float value = TurboQuantValue{15}.decode(codes[0] & 15, row);
    EXPECT_TRUE((row.scale & 0x7C00) == 0x7C00 || std::isfinite(value));
  }
}

}  // namespace
}  // namespace bitalloc
