// Every format of the catalogue: against other people's packages (tests/oracle/
// make_catalogue_cases.py says whose), and the fast loops against the plain one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "kernels/formats/variants.h"
#include "kernels/oracle_cases.h"

namespace bitalloc {
namespace {

const std::string kStem = "catalogue_cases";
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Format format_of(const std::string& name) {
  const auto format = parse_format(name);
  EXPECT_TRUE(format.ok()) << name;
  return *format;
}

// ---- the oracles ----

// The share of a format's groups that may choose otherwise: where two choices are equally good up
// to the order of a sum.
double allowed_groups(const OracleCase& c) {
  return c.format.starts_with("nvfp4_4over6") ? 0.01 : 0;
}

struct Agreement {
  int64_t values = 0;
  int64_t groups = 0;
  int64_t differing = 0;  // groups
};

template <typename Element>
void compare(const OracleCase& c, Agreement& total) {
  const Format format = format_of(c.format);
  const auto in = read_tensor<Element>(kStem, c.input_offset, c.count());
  const auto expected = read_tensor<Element>(kStem, c.output_offset, c.count());
  const auto actual = fake_quantize(format, c.amax, in, c.head_dim);
  constexpr int64_t kGroup = 16;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t begin = 0; begin < c.head_dim; begin += kGroup) {
      bool differs = false;
      for (int64_t k = begin; k < std::min(begin + kGroup, c.head_dim); ++k) {
        const int64_t i = row * c.head_dim + k;
        if (same(actual[i], expected[i])) continue;
        differs = true;
        ASSERT_GT(allowed_groups(c), 0)
            << c.oracle << ' ' << c.name << ' ' << c.format << ' ' << c.storage << " amax "
            << c.amax << " row " << row << " element " << k << ": input " << value_of(in[i])
            << " gave " << value_of(actual[i]) << ", expected " << value_of(expected[i]);
      }
      ++total.groups;
      total.differing += differs ? 1 : 0;
    }
  }
  total.values += c.count();
}

TEST(Catalogue, EqualsItsOracles) {
  std::map<std::string, Agreement> agreements;
  const auto cases = read_cases(kStem, true);
  ASSERT_GE(cases.size(), 300u);
  for (const OracleCase& c : cases) {
    Agreement& total = agreements[c.oracle + " " + c.format];
    c.storage == "f32" ? compare<float>(c, total) : compare<Bfloat16>(c, total);
    if (HasFatalFailure()) return;
    EXPECT_LE(total.differing, 2 + allowed_groups(c) * static_cast<double>(total.groups))
        << c.oracle << ' ' << c.format;
  }
  for (const auto& [what, total] : agreements) {
    std::printf("%-58s %6ld values, %ld of %ld groups of 16 differ\n", what.c_str(),
                static_cast<long>(total.values), static_cast<long>(total.differing),
                static_cast<long>(total.groups));
  }
}

// ---- the plain loop ----

// What the numerics say, one group after the other.
struct PlainLoop {
  std::vector<float>& values;
  int64_t head_dim;
  int64_t run_time_group;

  template <typename Numerics>
  void operator()(const Numerics& numerics) const {
    const int64_t asked = run_time_group > 0 ? run_time_group : head_dim;
    const int64_t group = Numerics::kGroup > 0 ? Numerics::kGroup : asked;
    for (size_t row = 0; row < values.size(); row += head_dim) {
      for (int64_t i = 0; i < head_dim; i += group) {
        const auto size = static_cast<int>(std::min(group, head_dim - i));
        ScalarGroup one(values.data() + row + i, size);
        numerics.fake_quantize(one);
      }
    }
  }
};

std::vector<float> wild_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-140, 120), rare(0, 199), steps(-24, 24);
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const int block = static_cast<int>(i / 32 % 4);
    values[i] = block == 0   ? normal(random)
                : block == 1 ? std::ldexp(normal(random), exponent(random))
                : block == 2 ? 0.25f * static_cast<float>(steps(random))
                             : normal(random) * 1e-3f;
    const int special = rare(random);
    if (special == 0) values[i] = kNan;
    if (special == 1) values[i] = kInfinity;
    if (special == 2) values[i] = -0.0f;
  }
  return values;
}

TEST(Catalogue, FastLoopsEqualThePlainOneBitForBit) {
  for (const std::string& name : every_variant()) {
    const Quantizer quantizer = make_quantizer(format_of(name), 3.7f);
    for (const int64_t head_dim : {16, 32, 48, 64, 80, 128, 256, 20, 33, 7, 1}) {
      const auto in = wild_values(37 * head_dim, static_cast<uint32_t>(head_dim));
      auto plain = in;
      visit(quantizer, PlainLoop{plain, head_dim, quantizer.group});
      const auto fast = fake_quantize(format_of(name), 3.7f, in, head_dim);
      for (size_t i = 0; i < in.size(); ++i) {
        const bool equal = std::isnan(plain[i]) ? std::isnan(fast[i])
                                                : float_bits(plain[i]) == float_bits(fast[i]);
        ASSERT_TRUE(equal) << name << " head_dim " << head_dim << " element " << i << ": input "
                           << in[i] << " gave " << fast[i] << ", the plain loop " << plain[i];
      }
    }
  }
}

TEST(Catalogue, Bfloat16EqualsFloat32Rounded) {
  for (const std::string& name : every_variant()) {
    for (const int64_t head_dim : {64, 20}) {
      std::vector<Bfloat16> halves;
      std::vector<float> floats;
      for (const float value : wild_values(40 * head_dim, 5)) {
        halves.push_back(bf16_encode(value));
        floats.push_back(bf16_decode(halves.back()));
      }
      const auto of_halves = fake_quantize(format_of(name), 3.7f, halves, head_dim);
      const auto of_floats = fake_quantize(format_of(name), 3.7f, floats, head_dim);
      for (size_t i = 0; i < halves.size(); ++i) {
        const float rounded = bf16_decode(bf16_encode(of_floats[i]));
        const float half = bf16_decode(of_halves[i]);
        ASSERT_TRUE(std::isnan(rounded) ? std::isnan(half) : rounded == half) << name << ' ' << i;
      }
    }
  }
}

TEST(Catalogue, NanIsNeverLostAndOthersStayFinite) {
  for (const std::string& name : every_variant()) {
    for (int64_t position = 0; position < 64; position += 9) {
      std::vector<float> in(64, 0.5f);
      in[position] = kNan;
      const auto out = fake_quantize(format_of(name), 3.7f, in, 64);
      EXPECT_TRUE(std::isnan(out[position])) << name;
      in[position] = 0.25f;
      EXPECT_THAT(fake_quantize(format_of(name), 3.7f, in, 64),
                  testing::Each(testing::Truly([](float x) { return std::isfinite(x); })))
          << name;
    }
  }
}

// ---- packed blocks ----

template <typename Encode, typename Decode>
void expect_packing(const std::string& name, Encode encode, Decode decode) {
  for (const int count : {32, 17, 1}) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
      const auto in = wild_values(count, seed);
      std::vector<float> unpacked(count);
      decode(encode(in.data(), count), count, unpacked.data());
      const auto out = fake_quantize(format_of(name), 448, in, count);
      for (int i = 0; i < count; ++i) {
        ASSERT_TRUE(std::isnan(out[i]) ? std::isnan(unpacked[i]) : out[i] == unpacked[i])
            << name << ' ' << in[i] << ": " << unpacked[i] << ", " << out[i];
      }
    }
  }
}

TEST(Catalogue, FakeQuantizationIsEncodingAndDecoding) {
  const struct {
    const char* name;
    BlockExponent exponent;
  } rules[] = {{"rceil", BlockExponent::kRceil},
               {"floor", BlockExponent::kFloor},
               {"ceil", BlockExponent::kCeil},
               {"even", BlockExponent::kEven}};
  for (const auto& rule : rules) {
    const auto name = [&](const char* kind) {
      return std::string(kind) + "[exponent=" + rule.name + "]";
    };
    expect_packing(
        name("mxfp4"),
        [&](const float* x, int count) { return mxfp4_encode({rule.exponent}, x, count); },
        [](const Mxfp4Block& block, int count, float* x) { mxfp4_decode(block, count, x); });
    expect_packing(
        name("mxfp8"),
        [&](const float* x, int count) { return mxfp8_encode({rule.exponent}, x, count); },
        [](const Mxfp8Block& block, int count, float* x) { mxfp8_decode(block, count, x); });
    expect_packing(
        name("mxint8"),
        [&](const float* x, int count) { return mxint8_encode({rule.exponent}, x, count); },
        [](const Mxint8Block& block, int count, float* x) { mxint8_decode(block, count, x); });
  }
}

TEST(Catalogue, IntegersComeBackFromTheirPackedGroups) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const int size : {64, 40, 1}) {
      const IntAffine<Arithmetic::kBf16> format{static_cast<float>((1 << bits) - 1)};
      for (uint32_t seed = 0; seed < 100; ++seed) {
        const auto in = wild_values(size, seed);
        std::vector<uint8_t> codes(size), bytes((size * bits + 7) / 8);
        const auto group = format.encode(in.data(), size, codes.data());
        pack_codes(codes.data(), size, bits, bytes.data());
        const auto out = fake_quantize(format_of("int" + std::to_string(bits)), 448, in, size);
        for (int i = 0; i < size; ++i) {
          const float value = format.decode(unpack_code(bytes.data(), i, bits), group);
          ASSERT_TRUE(std::isnan(out[i]) ? std::isnan(value) : out[i] == value)
              << bits << " bits: " << in[i] << ": " << value << ", " << out[i];
        }
      }
    }
  }
}

TEST(Catalogue, ConstantGroupsComeBackExactly) {
  for (const char* name :
       {"int2", "int3", "int4", "int8", "int4[arithmetic=fp16]", "int4[arithmetic=fp32]"}) {
    EXPECT_THAT(fake_quantize(format_of(name), 448, std::vector<float>(70, -0.375f), 70),
                testing::Each(-0.375f))
        << name;
  }
}

TEST(Catalogue, BitsAreThoseOfPackedBlocks) {
  const auto bits = [](const char* name) { return bits_per_element(format_of(name), {128}); };
  EXPECT_EQ(bits("mxfp4"), sizeof(Mxfp4Block) * 8 / 32.0);
  EXPECT_EQ(bits("mxfp8"), sizeof(Mxfp8Block) * 8 / 32.0);
  EXPECT_EQ(bits("mxint8"), sizeof(Mxint8Block) * 8 / 32.0);
  EXPECT_EQ(bits("nvfp4_4over6"), sizeof(Nvfp4Block) * 8 / 16.0);
  EXPECT_EQ(bits("fp8_e5m2"), 8.0);
  // A row of two groups of 64 codes, each with two numbers of 16 or 32 bits; or groups of 64
  // tokens.
  EXPECT_EQ(bits("int4"), 2 * (64 * 4 + 2 * 16) / 128.0);
  EXPECT_EQ(bits("int4[arithmetic=fp32]"), 2 * (64 * 4 + 2 * 32) / 128.0);
  EXPECT_EQ(bits("int2[group=32]"), 4 * (32 * 2 + 2 * 16) / 128.0);
  EXPECT_EQ(bits("int2[group=32,axis=channel]"), (32 * 2 + 2 * 16) / 32.0);
  EXPECT_EQ(bits_per_element(format_of("int4"), {80}), (80 * 4 + 2 * 2 * 16) / 80.0);  // 64 + 16
  EXPECT_EQ(bits("int8_token_head"), (128 + 4) * 8 / 128.0);
  EXPECT_EQ(bits("int4_token_head"), (64 + 4) * 8 / 128.0);
  // 128 codes of a byte and a float32 scale a row.
  EXPECT_EQ(bits("fp8_e4m3[granularity=token_head]"), (128 + 4) * 8 / 128.0);
}

TEST(Catalogue, EveryByteDecodes) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto code = static_cast<uint8_t>(byte);
    const float value = e5m2_decode({code});
    const uint8_t again = e5m2_encode(value).bits;
    const uint32_t magnitude = byte & 0x7F;
    EXPECT_EQ(std::isnan(value), magnitude > 0x7C);
    const uint32_t stored = magnitude == 0x7C ? byte - 1 : byte;  // infinity saturates
    EXPECT_TRUE(std::isnan(value) || again == stored) << byte;
    Mxfp4Block fp4;
    Mxfp8Block fp8;
    Mxint8Block int8;
    for (uint32_t scale = 0; scale < 256; ++scale) {
      float values[kMxBlockSize];
      std::fill(std::begin(fp4.codes), std::end(fp4.codes), code);
      std::fill(std::begin(fp8.codes), std::end(fp8.codes), Fp8E4m3{code});
      std::fill(std::begin(int8.codes), std::end(int8.codes), static_cast<int8_t>(byte));
      fp4.scale = fp8.scale = int8.scale = static_cast<uint8_t>(scale);
      mxfp4_decode(fp4, kMxBlockSize, values);
      EXPECT_EQ(std::isnan(values[0]), scale == 255);
      mxfp8_decode(fp8, kMxBlockSize, values);
      EXPECT_EQ(std::isnan(values[0]), scale == 255 || magnitude == 0x7F);
      mxint8_decode(int8, kMxBlockSize, values);
      EXPECT_EQ(std::isnan(values[31]), scale == 255);
    }
  }
}

// ---- bounds ----

// Half of the widest step below the largest magnitude, over that magnitude, where the format's
// range holds it.
TEST(Catalogue, ErrorsStayWithinTheFormatsStep) {
  const std::map<std::string, float> bounds = {
      {"bf16", 1 / 256.0f},
      {"fp8_e4m3[granularity=token_head]", 1.001f / 28},  // step 32 at 448
      {"fp8_e5m2", 1 / 8.0f},                             // 2 mantissa bits
      {"nvfp4", 0.19f},                                   // 1/6, the scale rounded by 1/16
      {"nvfp4[encoding=tensor]", 0.19f},
      {"nvfp4[encoding=fast]", 0.19f},
      {"nvfp4[encoding=exact]", 0.19f},
      {"nvfp4_4over6", 0.19f},
      {"mxfp4", 1 / 3.0f},   // the scale up to twice as large as needed: step 2 of 3
      {"mxfp8", 1 / 14.0f},  // 16 of 224
      {"mxint8", 1 / 63.0f},
      {"int8_token_head", 1 / 253.0f},        // half a step of amax/127
      {"int2[arithmetic=fp32]", 2 / 5.99f},   // half a step of the range, at most 2 amax, over 3
      {"int4[arithmetic=fp32]", 2 / 29.9f},   // over 15
      {"int8[arithmetic=fp32]", 2 / 509.0f},  // over 255
  };
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const auto& [name, bound] : bounds) {
    for (int repetition = 0; repetition < 200; ++repetition) {
      std::vector<float> in(32);
      float largest = 0;
      for (float& x : in) x = normal(random) * 10;
      for (const float x : in) largest = std::max(largest, std::abs(x));
      const auto out = fake_quantize(format_of(name), 448, in, 32);
      for (size_t i = 0; i < in.size(); ++i) {
        EXPECT_LE(std::abs(out[i] - in[i]), bound * largest) << name << ' ' << in[i];
      }
    }
  }
}

}  // namespace
}  // namespace bitalloc
