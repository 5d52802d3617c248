// The formats against other people's implementations: tests/oracle/make_formats.py says whose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/oracle_cases.h"

namespace bitalloc {
namespace {

const std::string kStem = "formats_cases";
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float from_bf16_bits(uint32_t bits) { return bf16_decode(Bfloat16{static_cast<uint16_t>(bits)}); }

// ---- element types, every bfloat16 input ----

TEST(Formats, EncodesEveryBf16ToE4m3LikeMlDtypesAndTorch) {
  const std::vector<int> expected = read_codes("formats_e4m3.txt");
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Fp8E4m3 code = e4m3_encode(from_bf16_bits(bits));
    const bool right = expected[bits] < 0 ? (code.bits & 0x7F) == kE4m3Nan
                                          : code.bits == static_cast<uint32_t>(expected[bits]);
    if (!right && ++wrong <= 5) {
      ADD_FAILURE() << std::hex << "input " << bits << ": " << +code.bits << ", expected "
                    << expected[bits];
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Formats, EncodesEveryBf16ToE2m1LikeMlDtypesAndModelopt) {
  const std::vector<int> expected = read_codes("formats_e2m1.txt");
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if (expected[bits] < 0) continue;  // NaN has no code; blocks carry it in their scale
    const int code = e2m1_encode(from_bf16_bits(bits));
    if (code != expected[bits] && ++wrong <= 5) {
      ADD_FAILURE() << std::hex << "input " << bits << ": " << code << ", expected "
                    << expected[bits];
    }
  }
  EXPECT_EQ(wrong, 0);
}

// The tables of the OCP specifications, worked by hand: (-1)^s · 1.m · 2^(e - bias).
TEST(Formats, DecodesEveryCodeByItsFormula) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
    const float decoded = e4m3_decode(Fp8E4m3{static_cast<uint8_t>(code)});
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(decoded));
    } else {
      EXPECT_EQ(decoded, (code & 0x80) ? -magnitude : magnitude) << code;
      EXPECT_EQ(std::signbit(decoded), code >= 0x80) << code;
      EXPECT_EQ(e4m3_encode(decoded).bits, code);
    }
  }
  const float e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    const float decoded = e2m1_decode(static_cast<uint8_t>(code));
    EXPECT_EQ(decoded, code < 8 ? e2m1[code] : -e2m1[code - 8]);
    EXPECT_EQ(std::signbit(decoded), code >= 8);
    EXPECT_EQ(e2m1_encode(decoded), code);
  }
}

// ---- tensors ----

template <typename Element>
void expect_bit_equal(const OracleCase& c) {
  const auto format = parse_format(c.format);
  ASSERT_TRUE(format.ok()) << c.format;
  const auto in = read_tensor<Element>(kStem, c.input_offset, c.count());
  const auto expected = read_tensor<Element>(kStem, c.output_offset, c.count());
  const auto actual = fake_quantize(*format, c.amax, in, c.head_dim);
  for (int64_t i = 0; i < c.count(); ++i) {
    ASSERT_TRUE(same(actual[i], expected[i]))
        << c.name << ' ' << c.format << ' ' << c.storage << " amax " << c.amax << " element " << i
        << " of rows of " << c.head_dim << ": input " << value_of(in[i]) << " gave "
        << value_of(actual[i]) << ", expected " << value_of(expected[i]);
  }
}

TEST(Formats, FakeQuantizationEqualsItsOracleBitForBit) {
  int compared = 0;
  for (const OracleCase& c : read_cases(kStem, false)) {
    if (c.format == "nvfp4_tensor") continue;
    c.storage == "f32" ? expect_bit_equal<float>(c) : expect_bit_equal<Bfloat16>(c);
    if (HasFatalFailure()) return;
    ++compared;
  }
  EXPECT_GE(compared, 300);
}

// Served NVFP4 multiplies with a rounded reciprocal where NVFP4QTensor divides, and lets a scale
// become 0 where NVFP4QTensor keeps 2^-9. Otherwise they agree.
TEST(Formats, ServedNvfp4EqualsNvfp4TensorButForTiesAndTinyBlocks) {
  int64_t compared = 0, at_ties = 0;
  for (const OracleCase& c : read_cases(kStem, false)) {
    if (c.format != "nvfp4_tensor" || c.storage != "f32") continue;
    const Format format{FormatKind::kNvfp4, ScalePolicy::kCalibrated, Encoding::kServed};
    const float g = nvfp4_served_global_scale(c.amax);
    const auto in = read_tensor<float>(kStem, c.input_offset, c.count());
    const auto expected = read_tensor<float>(kStem, c.output_offset, c.count());
    const auto actual = fake_quantize(format, c.amax, in, c.head_dim);
    for (int64_t i = 0; i < c.count(); ++i) {
      const int64_t begin = i - i % c.head_dim % kNvfp4BlockSize;
      const float bmax = block_max(&in[begin], kNvfp4BlockSize);
      if (bmax / (6 * g) < std::ldexp(1.0f, -9)) continue;
      ++compared;
      const float scaled = std::abs(in[i]) / (nvfp4_block_scale(bmax, g) * g);
      const float below = e2m1_round(std::nextafter(std::nextafter(scaled, 0.0f), 0.0f));
      const float above = e2m1_round(std::nextafter(std::nextafter(scaled, 9.0f), 9.0f));
      if (below != above) {
        ++at_ties;
        continue;
      }
      // (code·s)·g here, code·(s·g) there.
      ASSERT_TRUE(std::abs(actual[i] - expected[i]) <= std::abs(expected[i]) * 2e-7f)
          << c.name << " amax " << c.amax << " element " << i << ": " << actual[i] << " and "
          << expected[i];
    }
  }
  EXPECT_GE(compared, 4000);
  EXPECT_LE(at_ties, compared / 5) << "most elements must have been compared";
}

// ---- packed blocks ----

struct PackedLine {
  float global_scale = 0;
  float values[kNvfp4BlockSize] = {};
  Nvfp4Block block = {};
};

std::vector<PackedLine> read_packed() {
  std::ifstream file(oracle_path("formats_packed.txt"));
  std::vector<PackedLine> lines;
  std::string line, word;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    PackedLine packed;
    words >> packed.global_scale;
    for (float& value : packed.values) {
      words >> word;
      value = float_from_bits(static_cast<uint32_t>(std::stoul(word, nullptr, 16)));
    }
    words >> word;
    for (int i = 0; i < kNvfp4BlockSize / 2; ++i) {
      packed.block.codes[i] = static_cast<uint8_t>(std::stoul(word.substr(2 * i, 2), nullptr, 16));
    }
    words >> word;
    packed.block.scale.bits = static_cast<uint8_t>(std::stoul(word, nullptr, 16));
    lines.push_back(packed);
  }
  return lines;
}

TEST(Formats, PacksNvfp4BlocksAsNvfp4TensorDoes) {
  const auto lines = read_packed();
  ASSERT_EQ(lines.size(), 32u);
  for (const PackedLine& line : lines) {
    const Nvfp4Block block =
        nvfp4_encode(Nvfp4Served{{line.global_scale}}, line.values, kNvfp4BlockSize);
    EXPECT_EQ(block.scale.bits, line.block.scale.bits);
    EXPECT_THAT(block.codes, testing::ElementsAreArray(line.block.codes));
  }
}

TEST(Formats, FakeQuantizationIsEncodingAndDecoding) {
  const Format format{FormatKind::kNvfp4, ScalePolicy::kCalibrated, Encoding::kServed};
  for (const PackedLine& line : read_packed()) {
    for (int count : {1, 7, 16}) {
      std::vector<float> in(line.values, line.values + count);
      std::vector<float> decoded(count);
      const float amax = line.global_scale * 448;
      const Nvfp4Served served{{line.global_scale}};
      nvfp4_decode(served, nvfp4_encode(served, in.data(), count), count, decoded.data());
      EXPECT_EQ(fake_quantize(format, amax, in, count), decoded);
    }
  }
}

// ---- special values ----

const Format kEveryFormat[] = {
    {FormatKind::kBf16},
    {FormatKind::kFp8E4m3},
    {FormatKind::kNvfp4},
    {FormatKind::kNvfp4, ScalePolicy::kConstant, Encoding::kModelopt},
};

TEST(Formats, NanIsNeverLost) {
  for (const Format& format : kEveryFormat) {
    for (int64_t head_dim : {16, 20, 5}) {
      for (int64_t position = 0; position < head_dim; ++position) {
        std::vector<float> in(head_dim, 1.0f);
        in[position] = kNan;
        const auto out = fake_quantize(format, 448, in, head_dim);
        const int64_t block = position / kNvfp4BlockSize;
        for (int64_t i = 0; i < head_dim; ++i) {
          const bool same_block = i / kNvfp4BlockSize == block;
          const bool whole_block = format.kind == FormatKind::kNvfp4;
          EXPECT_EQ(std::isnan(out[i]), whole_block ? same_block : i == position)
              << format_name(format) << ' ' << i;
        }
      }
    }
  }
  float values[kNvfp4BlockSize] = {1, kNan};
  float decoded[kNvfp4BlockSize];
  const Nvfp4Served served{{1.0f}};
  nvfp4_decode(served, nvfp4_encode(served, values, kNvfp4BlockSize), kNvfp4BlockSize, decoded);
  for (float value : decoded) EXPECT_TRUE(std::isnan(value));
}

TEST(Formats, InfinitySaturatesOrStays) {
  for (const Format& format : kEveryFormat) {
    std::vector<float> in(16, 0.0f);
    in[3] = -kInfinity;
    in[4] = 2000;
    const auto out = fake_quantize(format, 448, in, 16);
    // bf16 has infinities; 448 is E4M3's largest; NVFP4: 6 · 448 · g with g = 1 and 1/6.
    const bool modelopt = format.encoding == Encoding::kModelopt;
    const float largest = format.kind == FormatKind::kBf16      ? kInfinity
                          : format.kind == FormatKind::kFp8E4m3 ? 448.0f
                          : modelopt                            ? 448.0f
                                                                : 2688.0f;
    EXPECT_FLOAT_EQ(out[3], -largest) << format_name(format);
    EXPECT_EQ(out[0], 0) << format_name(format);
    EXPECT_TRUE(std::isfinite(out[4]) && out[4] > 0) << format_name(format);
  }
}

// With g = 1 a block whose largest magnitude is at most 6·2^-10 has scale 0.
TEST(Formats, ServedTinyBlocksVanishAndModeloptOnesDoNot) {
  const std::vector<float> in(16, 6 * 0x1p-10f);
  EXPECT_THAT(fake_quantize({FormatKind::kNvfp4}, 448, in, 16), testing::Each(0.0f));
  const Format modelopt{FormatKind::kNvfp4, ScalePolicy::kConstant, Encoding::kModelopt};
  EXPECT_THAT(fake_quantize(modelopt, 448, in, 16), testing::Each(testing::Gt(0.005f)));
}

TEST(Formats, CalibratedZeroAmaxIsHarmless) {
  for (Format format : kEveryFormat) {
    if (format.kind != FormatKind::kBf16) format.scale = ScalePolicy::kCalibrated;
    const auto out = fake_quantize(format, 0.0f, std::vector<float>(20, 0.0f), 20);
    EXPECT_THAT(out, testing::Each(0.0f)) << format_name(format);
  }
}

TEST(Formats, ConstantPolicyIgnoresAmax) {
  const std::vector<float> in = {1.1f, -3.3f, 0.2f};
  for (const Format& format : kEveryFormat) {
    EXPECT_EQ(fake_quantize(format, kNan, in, 3), fake_quantize(format, 448, in, 3));
  }
}

TEST(FormatsDeathTest, RefusesACalibratedAmaxThatIsNotFinite) {
  const Format format{FormatKind::kFp8E4m3, ScalePolicy::kCalibrated};
  EXPECT_DEATH(make_quantizer(format, kNan), "finite");
  EXPECT_DEATH(make_quantizer(format, kInfinity), "finite");
}

TEST(Formats, ReadsRowsApartAndWritesInPlace) {
  const int64_t rows = 3, head_dim = 20, stride = 29;
  std::vector<float> apart(rows * stride, kNan), together;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < head_dim; ++i) {
      apart[row * stride + i] = 0.37f * static_cast<float>(row * head_dim + i) - 5;
      together.push_back(apart[row * stride + i]);
    }
  }
  for (const Format& format : kEveryFormat) {
    const auto expected = fake_quantize(format, 448, together, head_dim);
    auto in_place = apart;
    fake_quantize_cpu(make_quantizer(format, 448), in_place.data(), stride, in_place.data(), stride,
                      rows, head_dim);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < head_dim; ++i) {
        EXPECT_EQ(in_place[row * stride + i], expected[row * head_dim + i]);
      }
      for (int64_t i = head_dim; i < stride; ++i) {
        EXPECT_TRUE(std::isnan(in_place[row * stride + i])) << "written between the rows";
      }
    }
  }
}

TEST(AbsoluteMax, ReportsTheLargestMagnitudeAndNan) {
  for (int64_t count : {1, 15, 16, 17, 100}) {
    for (int64_t position = 0; position < count; ++position) {
      std::vector<float> values(count, 0.25f);
      values[position] = -2.5f;
      EXPECT_EQ(absolute_max_cpu(values.data(), count), 2.5f);
      std::vector<Bfloat16> halves;
      for (float value : values) halves.push_back(bf16_encode(value));
      EXPECT_EQ(absolute_max_cpu(halves.data(), count), 2.5f);
      values[position] = kNan;
      values[(position + 1) % count] = count > 1 ? kInfinity : kNan;
      EXPECT_TRUE(std::isnan(absolute_max_cpu(values.data(), count)));
    }
  }
  const float infinite[] = {1, -kInfinity};
  EXPECT_EQ(absolute_max_cpu(infinite, 2), kInfinity);
  EXPECT_EQ(absolute_max_cpu(infinite, 0), 0);
}

}  // namespace
}  // namespace bitalloc
