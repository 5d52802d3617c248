#include "kernels/formats/catalogue.h"

#include <algorithm>

#include "kernels/formats/text.h"

namespace bitalloc {
namespace {

template <auto kField>
uint32_t get(const Format& format) {
  return static_cast<uint32_t>(format.*kField);
}
template <auto kField, typename Value>
void set(Format& format, uint32_t value) {
  format.*kField = static_cast<Value>(value);
}
template <auto kField, typename Value>
constexpr Parameter parameter(const char* name, std::span<const char* const> values = {}) {
  return {name, get<kField>, set<kField, Value>, values};
}

// Constants: whoever parses a format before main() finds them.
constexpr const char* kScaleNames[] = {"constant", "calibrated"};
constexpr Parameter kScale = parameter<&Format::scale, ScalePolicy>("scale", kScaleNames);
constexpr const char* kEncodingNames[] = {"served", "modelopt", "tensor", "fast", "exact"};
constexpr Parameter kEncoding = parameter<&Format::encoding, Encoding>("encoding", kEncodingNames);
constexpr const char* kGranularityNames[] = {"tensor", "token_head"};
constexpr Parameter kGranularity =
    parameter<&Format::granularity, Granularity>("granularity", kGranularityNames);
constexpr const char* kErrorNames[] = {"mse", "mae", "abs_max"};
constexpr Parameter kError = parameter<&Format::error, BlockError>("error", kErrorNames);
constexpr Parameter kNormaliser = parameter<&Format::normaliser, uint32_t>("normaliser");
constexpr const char* kExponentNames[] = {"rceil", "floor", "ceil", "even"};
constexpr Parameter kExponent =
    parameter<&Format::exponent, BlockExponent>("exponent", kExponentNames);
constexpr Parameter kGroup = parameter<&Format::group, uint32_t>("group");
constexpr const char* kAxisNames[] = {"token", "channel"};
constexpr Parameter kAxis = parameter<&Format::axis, Axis>("axis", kAxisNames);
constexpr const char* kArithmeticNames[] = {"bf16", "fp16", "fp32"};
constexpr Parameter kArithmetic =
    parameter<&Format::arithmetic, Arithmetic>("arithmetic", kArithmeticNames);
constexpr const char* kRotateNames[] = {"none", "hadamard"};
constexpr Parameter kRotate = parameter<&Format::rotate, Rotation>("rotate", kRotateNames);
constexpr const char* kSeeNames[] = {"all", "window", "kivi", "after_prefill"};
constexpr Parameter kSee = parameter<&Format::see, See>("see", kSeeNames);
constexpr Parameter kWindow = parameter<&Format::window, uint32_t>("window");
constexpr Parameter kPrefill = parameter<&Format::prefill, uint32_t>("prefill");

// `codes` bits an element and `scale` bits for every `block`, in 1/block of a bit.
template <int kCodes, int kScaleBits = 0, int kBlock = 1>
double block_bits(const Format& /*format*/, int64_t /*head_dim*/) {
  return static_cast<double>(kCodes * kBlock + kScaleBits) / kBlock;
}

// With a float32 scale a row where it is a row's own.
double fp8_bits(const Format& format, int64_t head_dim) {
  const bool own = format.granularity == Granularity::kTokenHead;
  return 8 + (own ? 32.0 / static_cast<double>(head_dim) : 0.0);
}

template <int kCodes>
double token_head_bits(const Format& /*format*/, int64_t head_dim) {
  return kCodes + 32.0 / static_cast<double>(head_dim);
}

// A scale and a shift a group; along head_dim the last group of a row may be shorter.
template <int kCodes>
double affine_bits(const Format& format, int64_t head_dim) {
  const double own = format.arithmetic == Arithmetic::kFp32 ? 2 * 32 : 2 * 16;
  const int64_t group = group_of(format);
  if (format.axis == Axis::kChannel) return kCodes + own / static_cast<double>(group);
  const int64_t groups = (head_dim + group - 1) / group;
  return kCodes + own * static_cast<double>(groups) / static_cast<double>(head_dim);
}

template <int kCodes>
FormatRow affine_row(FormatKind kind, const char* name, const char* served_by,
                     const char* description) {
  return {.kind = kind,
          .name = name,
          .parameters = {{&kGroup, {64, 32, 128}}, {&kAxis}, {&kArithmetic}},
          .bits = affine_bits<kCodes>,
          .head_dim_multiple = 1,
          .granularity = "group along head_dim, or along the tokens of a channel",
          .served_by = served_by,
          .description = description};
}

std::string choices_text(const ParameterUse& use) {
  const auto& values = use.parameter->values;
  return concat(use.parameter->name, "=",
                use.most > 0     ? concat("1…", use.most)
                : values.empty() ? joined(use.numbers, "|")
                                 : joined(values, "|"));
}

std::vector<FormatRow> rows() {
  std::vector<FormatRow> rows;
  rows.push_back({.kind = FormatKind::kBf16,
                  .name = "bf16",
                  .parameters = {},
                  .bits = block_bits<16>,
                  .head_dim_multiple = 1,
                  .granularity = "none",
                  .served_by = "every engine",
                  .description = "bfloat16, the reference"});
  rows.push_back({.kind = FormatKind::kFp8E4m3,
                  .name = "fp8_e4m3",
                  .parameters = {{&kScale}, {&kGranularity}},
                  .bits = fp8_bits,
                  .head_dim_multiple = 1,
                  .granularity = "tensor, or token and head",
                  .served_by = "vLLM, SGLang, TensorRT-LLM",
                  .description = "8-bit float, 4 exponent and 3 mantissa bits, largest 448"});
  rows.push_back({.kind = FormatKind::kFp8E5m2,
                  .name = "fp8_e5m2",
                  .parameters = {{&kScale}},
                  .bits = block_bits<8>,
                  .head_dim_multiple = 1,
                  .granularity = "tensor",
                  .served_by = "vLLM, SGLang",
                  .description = "8-bit float, 5 exponent and 2 mantissa bits, largest 57344"});
  rows.push_back({.kind = FormatKind::kNvfp4,
                  .name = "nvfp4",
                  .parameters = {{&kEncoding}, {&kScale}},
                  .bits = block_bits<4, 8, 16>,
                  .head_dim_multiple = 16,
                  .granularity = "block of 16 along head_dim (E4M3 scale), tensor",
                  .served_by = "vLLM on SM100, TensorRT-LLM",
                  .description = "4-bit float E2M1 with an 8-bit E4M3 scale a block"});
  rows.push_back({.kind = FormatKind::kNvfp4FourOverSix,
                  .name = "nvfp4_4over6",
                  .parameters = {{&kError}, {&kNormaliser, {0, 256, 448}}, {&kScale}},
                  .bits = block_bits<4, 8, 16>,
                  .head_dim_multiple = 16,
                  .granularity = "block of 16 along head_dim (E4M3 scale), tensor",
                  .served_by = "vLLM on SM100",
                  .description = "nvfp4 whose blocks may put their largest value at 4, not 6"});
  rows.push_back({.kind = FormatKind::kMxfp4,
                  .name = "mxfp4",
                  .parameters = {{&kExponent}},
                  .bits = block_bits<4, 8, 32>,
                  .head_dim_multiple = 32,
                  .granularity = "block of 32 along head_dim (E8M0 scale)",
                  .served_by = "none",
                  .description = "4-bit float E2M1, OCP microscaling"});
  rows.push_back({.kind = FormatKind::kMxfp8,
                  .name = "mxfp8",
                  .parameters = {{&kExponent}},
                  .bits = block_bits<8, 8, 32>,
                  .head_dim_multiple = 32,
                  .granularity = "block of 32 along head_dim (E8M0 scale)",
                  .served_by = "none",
                  .description = "8-bit float E4M3, OCP microscaling"});
  rows.push_back({.kind = FormatKind::kMxint8,
                  .name = "mxint8",
                  .parameters = {{&kExponent}},
                  .bits = block_bits<8, 8, 32>,
                  .head_dim_multiple = 32,
                  .granularity = "block of 32 along head_dim (E8M0 scale)",
                  .served_by = "none",
                  .description = "8-bit integer, OCP microscaling"});
  const char* caches = "transformers QuantizedCache, KIVI";
  rows.push_back(affine_row<2>(FormatKind::kInt2, "int2", caches,
                               "2-bit integer with scale and shift a group (Quanto, KIVI)"));
  rows.push_back(affine_row<3>(FormatKind::kInt3, "int3", "none",
                               "3-bit integer with scale and shift a group"));
  rows.push_back(affine_row<4>(FormatKind::kInt4, "int4", caches,
                               "4-bit integer with scale and shift a group (Quanto, KIVI)"));
  rows.push_back(affine_row<8>(FormatKind::kInt8, "int8", "none",
                               "8-bit integer with scale and shift a group"));
  rows.push_back({.kind = FormatKind::kInt4TokenHead,
                  .name = "int4_token_head",
                  .parameters = {},
                  .bits = token_head_bits<4>,
                  .head_dim_multiple = 1,
                  .granularity = "token and head (float32 scale, zero point in its last bits)",
                  .served_by = "vLLM, behind its own rotation",
                  .description = "4-bit integer with scale and zero point; give rotate=hadamard"});
  rows.push_back({.kind = FormatKind::kInt8TokenHead,
                  .name = "int8_token_head",
                  .parameters = {},
                  .bits = token_head_bits<8>,
                  .head_dim_multiple = 1,
                  .granularity = "token and head (float32 scale)",
                  .served_by = "vLLM",
                  .description = "8-bit integer, symmetric"});
  return rows;
}

}  // namespace

const std::vector<FormatRow>& format_catalogue() {
  static const std::vector<FormatRow> all = [] {
    std::vector<FormatRow> made = rows();
    for (FormatRow& row : made) {
      if (row.kind == FormatKind::kBf16) continue;
      constexpr uint32_t kLongestWindow = 1 << 20;
      row.parameters.push_back({&kRotate});
      row.parameters.push_back({&kSee});
      row.parameters.push_back({&kWindow, {128}, kLongestWindow});
      row.parameters.push_back({&kPrefill, {0}, kLongestWindow});
    }
    return made;
  }();
  return all;
}

const FormatRow& catalogue_row(FormatKind kind) {
  for (const FormatRow& row : format_catalogue()) {
    if (row.kind == kind) return row;
  }
  check_failed(__FILE__, __LINE__, "kind has a row", "a format kind without a row");
}

std::vector<std::string> parameter_choices(const FormatRow& row) {
  std::vector<std::string> choices;
  for (const ParameterUse& use : row.parameters) choices.push_back(choices_text(use));
  return choices;
}

bool has_parameter(FormatKind kind, const std::string& name) {
  const auto& uses = catalogue_row(kind).parameters;
  return std::any_of(uses.begin(), uses.end(),
                     [&](const ParameterUse& use) { return name == use.parameter->name; });
}

}  // namespace bitalloc
