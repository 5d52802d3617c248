// Packed blocks of NVFP4's dialects and of the MX formats: the codes and scales that other packages
// store (tests/oracle/make_float_formats.py says whose), and what any bytes decode to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "kernels/formats/variants.h"
#include "kernels/oracle_cases.h"

namespace bitalloc {
namespace {

const std::string kStem = "float_blocks";
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// ---- any format's blocks as bytes ----

struct PackedBlock {
  std::vector<uint8_t> codes;  // two a byte where they have 4 bits
  uint8_t scale = 0;
};

template <typename Numerics>
concept Nvfp4Dialect = requires(const Numerics& numerics) {
  numerics.factor(1.0f);
};

struct Pack {
  const float* values;
  int count;

  template <Nvfp4Dialect Dialect>
  PackedBlock operator()(const Dialect& dialect) const {
    const Nvfp4Block block = nvfp4_encode(dialect, values, count);
    return {{std::begin(block.codes), std::end(block.codes)}, block.scale.bits};
  }
  PackedBlock operator()(const Mxfp4& format) const {
    const Mxfp4Block block = mxfp4_encode(format, values, count);
    return {{std::begin(block.codes), std::end(block.codes)}, block.scale};
  }
  PackedBlock operator()(const Mxfp8& format) const {
    const Mxfp8Block block = mxfp8_encode(format, values, count);
    PackedBlock packed{{}, block.scale};
    for (const Fp8E4m3 code : block.codes) packed.codes.push_back(code.bits);
    return packed;
  }
  PackedBlock operator()(const Mxint8& format) const {
    const Mxint8Block block = mxint8_encode(format, values, count);
    return {{std::begin(block.codes), std::end(block.codes)}, block.scale};
  }
  template <typename Other>
  PackedBlock operator()(const Other& /*other*/) const {
    ADD_FAILURE() << "a format without blocks";
    return {};
  }
};

struct Unpack {
  const PackedBlock& packed;
  int count;

  template <Nvfp4Dialect Dialect>
  std::vector<float> operator()(const Dialect& dialect) const {
    Nvfp4Block block;
    std::copy(packed.codes.begin(), packed.codes.end(), block.codes);
    block.scale.bits = packed.scale;
    std::vector<float> values(count);
    nvfp4_decode(dialect, block, count, values.data());
    return values;
  }
  std::vector<float> operator()(const Mxfp4& /*format*/) const {
    return decoded<Mxfp4Block>([](const auto&... a) { mxfp4_decode(a...); });
  }
  std::vector<float> operator()(const Mxfp8& /*format*/) const {
    return decoded<Mxfp8Block>([](const auto&... a) { mxfp8_decode(a...); });
  }
  std::vector<float> operator()(const Mxint8& /*format*/) const {
    return decoded<Mxint8Block>([](const auto&... a) { mxint8_decode(a...); });
  }
  template <typename Other>
  std::vector<float> operator()(const Other& /*other*/) const {
    ADD_FAILURE() << "a format without blocks";
    return {};
  }

 private:
  template <typename Block, typename Decode>
  std::vector<float> decoded(Decode decode) const {
    Block block;
    std::memcpy(&block.codes, packed.codes.data(), sizeof block.codes);
    block.scale = packed.scale;
    std::vector<float> values(count);
    decode(block, count, values.data());
    return values;
  }
};

bool is_nvfp4(const std::string& format) { return format.starts_with("nvfp4"); }
bool is_4bit(const std::string& format) { return is_nvfp4(format) || format.starts_with("mxfp4"); }
int group_size(const std::string& format) { return is_nvfp4(format) ? 16 : 32; }
bool is_nan_scale(const std::string& format, uint8_t scale) {
  return is_nvfp4(format) ? (scale & 0x7F) == kE4m3Nan : scale == kE8m0Nan;
}

Quantizer quantizer_named(const std::string& name, float amax) {
  const auto format = parse_format(name);
  EXPECT_TRUE(format.ok()) << name;
  return make_quantizer(*format, amax);
}

std::vector<std::string> block_formats() {
  std::vector<std::string> names;
  for (const std::string& name : every_variant()) {
    if (is_nvfp4(name) || name.starts_with("mx")) names.push_back(name);
  }
  return names;
}

// ---- the packages ----

struct BlockCase {
  std::string oracle, name, format;
  float amax = 0;
  int64_t rows = 0, head_dim = 0, input = 0, codes = 0, scales = 0;
};

std::vector<BlockCase> read_block_cases() {
  std::ifstream file(oracle_path(kStem + ".txt"));
  std::vector<BlockCase> cases;
  BlockCase c;
  while (file >> c.oracle >> c.name >> c.format >> c.amax >> c.rows >> c.head_dim >> c.input >>
         c.codes >> c.scales) {
    cases.push_back(c);
  }
  return cases;
}

// Where a package may store something else.
struct Exceptions {
  bool ties = false;      // E2M1 ties go elsewhere
  int codes_above = -1;   // codes are compared in blocks whose scale byte is above this
  int scales_above = -1;  // and so are scales
  double blocks = 0;      // this share of blocks may have another scale
};

Exceptions exceptions(const BlockCase& c) {
  const bool nvfp4 = is_nvfp4(c.format);
  // torchao multiplies with (1/g)/s and keeps s at 2^-6 (0x08) or above.
  if (c.oracle == "torchao" && nvfp4) {
    return {.ties = true, .codes_above = 0x08, .scales_above = 0x08};
  }
  // torchao stores exponent 0 (2^-127) but divides by 2^-126 or, with RCEIL, by 1.
  if (c.oracle == "torchao") return {.codes_above = 0};
  // MXFP4QTensor rounds all ties towards zero.
  if (c.oracle == "modelopt" && c.format.starts_with("mxfp4")) return {.ties = true};
  // Sums of errors in another order decide between scales that are equally good.
  if (c.format.starts_with("nvfp4_4over6")) return {.blocks = 0.01};
  return {};
}

// Whether |x| lies, but for rounding, half way between the values of two codes.
bool at_tie(float x, uint8_t a, uint8_t b, double scale) {
  const double middle = (std::abs(e2m1_decode(a)) + std::abs(e2m1_decode(b))) / 2.0 * scale;
  return std::abs(std::abs(x) - middle) <= 1e-6 * middle;
}

double scale_value(const BlockCase& c, uint8_t scale) {
  return is_nvfp4(c.format) ? double{e4m3_decode({scale})} * (c.amax / 448.0f)
                            : double{e8m0_decode_bits<float>(scale)};
}

bool same_code(const BlockCase& c, float x, uint8_t own, uint8_t other, double scale) {
  if (!is_4bit(c.format)) {
    const bool symmetric = c.format.starts_with("mxint8") && other == 0x80 && own == 0x81;
    const bool zeros = c.format.starts_with("mxfp8") && ((own | other) & 0x7F) == 0;
    return own == other || zeros || symmetric;  // gfloat uses −128, which OCP leaves open
  }
  const bool zeros = ((own | other) & 7) == 0;
  return own == other || zeros || (exceptions(c).ties && at_tie(x, own, other, scale));
}

struct Agreement {
  int64_t blocks = 0, compared = 0, other_scale = 0;
};

void compare_block(const BlockCase& c, const Exceptions& allowed, const float* values,
                   const uint8_t* codes, uint8_t scale, Agreement& total) {
  const int size = group_size(c.format);
  const PackedBlock own = visit(quantizer_named(c.format, c.amax), Pack{values, size});
  const std::string where = c.oracle + " " + c.name + " " + c.format;
  ++total.blocks;
  if (is_nan_scale(c.format, scale)) {
    EXPECT_TRUE(is_nan_scale(c.format, own.scale)) << where;
    return;
  }
  if (own.scale != scale && scale > allowed.scales_above) {
    EXPECT_GT(allowed.blocks, 0) << where << ": scale " << +own.scale << ", expected " << +scale
                                 << ", largest magnitude " << block_max(values, size);
    ++total.other_scale;
  }
  if (own.scale != scale || scale <= allowed.codes_above) return;
  ++total.compared;
  for (int i = 0; i < size; ++i) {
    const bool nibbles = is_4bit(c.format);
    const int at = nibbles ? i / 2 : i;
    const int shift = nibbles ? 4 * (i % 2) : 0;
    const auto mask = static_cast<uint8_t>(nibbles ? 0xF : 0xFF);
    const auto mine = static_cast<uint8_t>((own.codes[at] >> shift) & mask);
    const auto theirs = static_cast<uint8_t>((codes[at] >> shift) & mask);
    ASSERT_TRUE(same_code(c, values[i], mine, theirs, scale_value(c, scale)))
        << where << " amax " << c.amax << " element " << i << ": " << values[i] << " under scale "
        << +scale << " gave code " << +mine << ", expected " << +theirs;
  }
}

TEST(Blocks, HaveTheCodesAndScalesOfOtherPackages) {
  std::map<std::string, Agreement> agreements;
  const auto cases = read_block_cases();
  ASSERT_GE(cases.size(), 300u);
  for (const BlockCase& c : cases) {
    const int size = group_size(c.format);
    const int64_t blocks = c.rows * c.head_dim / size;
    const int64_t bytes = is_4bit(c.format) ? size / 2 : size;
    const auto in = read_tensor<float>(kStem, c.input, blocks * size);
    const auto codes = read_tensor<uint8_t>(kStem, c.codes, blocks * bytes);
    const auto scales = read_tensor<uint8_t>(kStem, c.scales, blocks);
    const Exceptions allowed = exceptions(c);
    Agreement& total = agreements[c.oracle + " " + c.format];
    for (int64_t i = 0; i < blocks; ++i) {
      compare_block(c, allowed, &in[i * size], &codes[i * bytes], scales[i], total);
      if (HasFatalFailure()) return;
    }
    EXPECT_LE(total.other_scale, 2 + allowed.blocks * static_cast<double>(total.blocks));
  }
  for (const auto& [what, total] : agreements) {
    std::printf("%-62s %4ld blocks, codes of %4ld, %ld have another scale\n", what.c_str(),
                static_cast<long>(total.blocks), static_cast<long>(total.compared),
                static_cast<long>(total.other_scale));
  }
}

// ---- encoding and decoding ----

// Blocks of every magnitude; in some, zeros, NaN and infinities.
std::vector<float> some_block(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const int exponent = static_cast<int>(random() % 260) - 140;
  std::vector<float> values(count);
  for (float& x : values) x = std::ldexp(normal(random), exponent);
  const float rare[] = {0.0f, -0.0f, kNan, kInfinity, -kInfinity, kLargest};
  if (seed % 3 == 0) values[random() % values.size()] = rare[random() % std::size(rare)];
  if (seed % 17 == 0) std::fill(values.begin(), values.end(), values[0]);
  return values;
}

TEST(Blocks, FakeQuantizationIsEncodingAndDecoding) {
  for (const std::string& name : block_formats()) {
    const int size = group_size(name);
    for (const float amax : {448.0f, 3.7f, 1e-7f, 1e30f}) {
      const Quantizer quantizer = quantizer_named(name, amax);
      for (const int count : {size, size - 1, 7, 1}) {
        for (uint32_t seed = 0; seed < 60; ++seed) {
          const auto in = some_block(count, seed);
          auto out = in;
          ScalarGroup group(out.data(), count);
          visit(quantizer, [&](const auto& numerics) { numerics.fake_quantize(group); });
          const PackedBlock packed = visit(quantizer, Pack{in.data(), count});
          const auto unpacked = visit(quantizer, Unpack{packed, count});
          for (int i = 0; i < count; ++i) {
            ASSERT_TRUE(std::isnan(out[i]) ? std::isnan(unpacked[i]) : same(out[i], unpacked[i]))
                << name << " amax " << amax << " seed " << seed << ": " << in[i] << " gave "
                << out[i] << ", unpacked " << unpacked[i];
          }
        }
      }
    }
  }
}

TEST(Blocks, AnyBytesDecode) {
  for (const std::string& name : block_formats()) {
    const Quantizer quantizer = quantizer_named(name, 3.7f);
    const int size = group_size(name);
    for (int scale = 0; scale < 256; ++scale) {
      for (int code = 0; code < 256; ++code) {
        const std::vector<uint8_t> codes(is_4bit(name) ? size / 2 : size,
                                         static_cast<uint8_t>(code));
        const PackedBlock packed{codes, static_cast<uint8_t>(scale)};
        const bool nan_code = name.starts_with("mxfp8") && (code & 0x7F) == kE4m3Nan;
        const bool nan = nan_code || is_nan_scale(name, packed.scale);
        EXPECT_EQ(std::isnan(visit(quantizer, Unpack{packed, size})[size - 1]), nan)
            << name << " scale " << scale << " code " << code;
      }
    }
  }
}

TEST(Blocks, NanMakesTheBlockNanAndZerosStayZeros) {
  for (const std::string& name : block_formats()) {
    const Quantizer quantizer = quantizer_named(name, 3.7f);
    const int size = group_size(name);
    std::vector<float> in(size, 0.0f);
    const PackedBlock zeros = visit(quantizer, Pack{in.data(), size});
    EXPECT_THAT(visit(quantizer, Unpack{zeros, size}), testing::Each(0.0f)) << name;
    in[size / 2] = kNan;
    const PackedBlock lost = visit(quantizer, Pack{in.data(), size});
    EXPECT_THAT(visit(quantizer, Unpack{lost, size}), testing::Each(testing::IsNan())) << name;
  }
}

// A block's error over its largest magnitude: half of the widest step, with what saturates and what
// the scale's own rounding costs. Blocks of all magnitudes that the format's range holds.
TEST(Blocks, ErrorsStayWithinTheFormatsStep) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::string& name : block_formats()) {
    const float bound = is_nvfp4(name)               ? 0.19f      // 1/6, the scale within 1/16
                        : name.starts_with("mxfp4")  ? 1 / 3.0f   // step 2 of 3
                        : name.starts_with("mxint8") ? 1 / 63.0f  // step 1 of 63
                        : name.find("even") < 99     ? 3 / 31.0f  // 496 saturates at 448
                        : name.find("floor") < 99    ? 1 / 8.0f   // 512 saturates at 448
                                                     : 1 / 14.0f;    // step 32 of 224
    for (int exponent = -100; exponent <= 100; exponent += 4) {
      const float amax = std::ldexp(4.0f, exponent);
      const bool calibrated = name.find("calibrated") < 99 || exponent == 0;
      if (is_nvfp4(name) && !(calibrated && std::abs(exponent) <= 20)) continue;
      const Quantizer quantizer = quantizer_named(name, amax);
      for (int repetition = 0; repetition < 20; ++repetition) {
        std::vector<float> in(group_size(name));
        for (float& x : in) x = std::clamp(normal(random), -4.0f, 4.0f) * amax / 4;
        const PackedBlock packed = visit(quantizer, Pack{in.data(), group_size(name)});
        const auto out = visit(quantizer, Unpack{packed, group_size(name)});
        const float largest = block_max(in.data(), group_size(name));
        for (size_t i = 0; i < in.size(); ++i) {
          EXPECT_LE(std::abs(out[i] - in[i]), bound * largest)
              << name << " amax " << amax << ": " << in[i] << " gave " << out[i];
        }
      }
    }
  }
}

// ---- the MX exponents at their ends, by hand ----

uint8_t mx_scale(BlockExponent rule, float largest) {
  return mxfp4_encode({rule}, &largest, 1).scale;
}

TEST(Mx, ExponentsByHand) {
  using enum BlockExponent;
  // e − 127 = ⌊log2 a⌋ − 2, ⌈log2 a⌉ − 2, ⌈log2(a/6)⌉; even: the next exponent from 1.75 on.
  const struct {
    float a;
    int floor, ceil, even, rceil;
  } cases[] = {
      {4, 0, 0, 0, 0},
      {6, 0, 1, 0, 0},
      {6.5f, 0, 1, 0, 1},
      {6.999f, 0, 1, 0, 1},
      {7, 0, 1, 1, 1},
      {8, 1, 1, 1, 1},
      {0x1p-124f, -126, -126, -126, -126},
      {0x1p-125f, -127, -127, -127, -127},
      {0x1p-140f, -127, -127, -127, -127},
      {0, -127, -127, -127, -127},
      {kLargest, 125, 126, 126, 126},
      {kInfinity, 126, 126, 126, 127},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(mx_scale(kFloor, c.a) - 127, c.floor) << c.a;
    EXPECT_EQ(mx_scale(kCeil, c.a) - 127, c.ceil) << c.a;
    EXPECT_EQ(mx_scale(kEven, c.a) - 127, c.even) << c.a;
    EXPECT_EQ(mx_scale(kRceil, c.a) - 127, c.rceil) << c.a;
  }
  // Exact where torchao and ModelOpt take a float32 log2, which is 3 here.
  EXPECT_EQ(mx_scale(kRceil, std::nextafter(48.0f, 49.0f)) - 127, 4);
}

// A value below the smallest scale is a multiple of 2^-127 like any other of its block.
TEST(Mx, DenormalsKeepTheirValues) {
  const std::vector<float> in = {0x1p-127f, -0x1.8p-127f, 0x1p-128f, 0x1p-130f, 0};
  for (const BlockExponent rule : {BlockExponent::kFloor, BlockExponent::kRceil}) {
    std::vector<float> out(in.size());
    mxfp4_decode(mxfp4_encode({rule}, in.data(), 5), 5, out.data());
    EXPECT_EQ(out, (std::vector<float>{0x1p-127f, -0x1.8p-127f, 0x1p-128f, 0, 0}));
    mxfp8_decode(mxfp8_encode({rule}, in.data(), 5), 5, out.data());
    EXPECT_EQ(out, in);
  }
}

// Transformer Engine's order of operations gives the served bytes where g is a power of two.
TEST(Nvfp4, ExactIsServedWhereTheGlobalScaleIsAPowerOfTwo) {
  for (const float g : {1.0f, 0.25f, 0x1p-9f, 8.0f}) {
    for (uint32_t seed = 0; seed < 500; ++seed) {
      const auto in = some_block(16, seed);
      const PackedBlock served = Pack{in.data(), 16}(Nvfp4Served{{g}});
      const PackedBlock exact = Pack{in.data(), 16}(Nvfp4Exact{{g}});
      EXPECT_EQ(served.codes, exact.codes) << g << ' ' << seed;
      EXPECT_EQ(served.scale, exact.scale) << g << ' ' << seed;
    }
  }
}

// 6N/amax would be infinite, and zeros would become NaN.
TEST(Nvfp4FourOverSix, ATinyAmaxCountsAsOne) {
  for (const float normaliser : {256.0f, 448.0f}) {
    const auto numerics = nvfp4_four_over_six_static(1e-37f, normaliser, BlockError::kMse);
    std::vector<float> values = {0, 1e-37f, -1e-37f};
    ScalarGroup group(values.data(), 3);
    numerics.fake_quantize(group);
    EXPECT_THAT(values, testing::Each(0.0f));
    EXPECT_EQ(nvfp4_four_over_six_static(1e-30f, normaliser, BlockError::kMse).amax, 1e-30f);
  }
}

}  // namespace
}  // namespace bitalloc
