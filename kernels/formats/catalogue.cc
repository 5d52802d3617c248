#include "kernels/formats/catalogue.h"

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
Parameter parameter(const char* name, std::vector<const char*> values) {
  return {name, get<kField>, set<kField, Value>, std::move(values)};
}

const Parameter kScale =
    parameter<&Format::scale, ScalePolicy>("scale", {"constant", "calibrated"});
const Parameter kEncoding =
    parameter<&Format::encoding, Encoding>("encoding", {"served", "modelopt"});

template <int kNumerator, int kDenominator = 1>
double constant_bits(const Format& /*format*/, int64_t /*head_dim*/) {
  return static_cast<double>(kNumerator) / kDenominator;
}

}  // namespace

const std::vector<FormatRow>& format_catalogue() {
  static const std::vector<FormatRow> rows = {
      {FormatKind::kBf16,
       "bf16",
       {},
       constant_bits<16>,
       1,
       "none",
       "every engine",
       "bfloat16, the reference"},
      {FormatKind::kFp8E4m3,
       "fp8_e4m3",
       {{&kScale}},
       constant_bits<8>,
       1,
       "tensor",
       "vLLM, SGLang, TensorRT-LLM",
       "8-bit float, 4 exponent and 3 mantissa bits, largest 448"},
      {FormatKind::kNvfp4,
       "nvfp4",
       {{&kEncoding}, {&kScale}},
       constant_bits<16 * 4 + 8, 16>,
       16,  // 16 codes and one 8-bit scale
       "block of 16 along head_dim (E4M3 scale), tensor",
       "vLLM on SM100, TensorRT-LLM",
       "4-bit float E2M1 with an 8-bit E4M3 scale a block"},
  };
  return rows;
}

const FormatRow& catalogue_row(FormatKind kind) {
  for (const FormatRow& row : format_catalogue()) {
    if (row.kind == kind) return row;
  }
  check_failed(__FILE__, __LINE__, "kind has a row", "a format kind without a row");
}

}  // namespace bitalloc
