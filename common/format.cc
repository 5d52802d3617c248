#include "common/format.h"

#include <fmt/format.h>

#include <array>

namespace bitalloc {
namespace {

struct KindRow {
  FormatKind kind;
  const char* name;
  double bits;
  const char* granularity;
  const char* served_by;
  const char* description;
};

// NVFP4: 4 bits and one 8-bit block scale for 16 elements: 4 + 8/16.
constexpr std::array<KindRow, 3> kKinds = {{
    {FormatKind::kBf16, "bf16", 16.0, "none", "every engine", "bfloat16, the reference"},
    {FormatKind::kFp8E4m3, "fp8_e4m3", 8.0, "tensor", "vLLM, SGLang, TensorRT-LLM",
     "8-bit float, 4 exponent and 3 mantissa bits, largest 448"},
    {FormatKind::kNvfp4, "nvfp4", 4.5, "block of 16 along head_dim (E4M3 scale), tensor",
     "vLLM on SM100, TensorRT-LLM", "4-bit float E2M1 with an 8-bit E4M3 scale a block"},
}};

const KindRow& row_of(FormatKind kind) {
  for (const auto& row : kKinds) {
    if (row.kind == kind) return row;
  }
  check_failed(__FILE__, __LINE__, "kind has a row", "a format kind without a row");
}

Result<FormatKind> parse_kind(std::string_view name) {
  if (name == "fp8") return FormatKind::kFp8E4m3;
  if (name == "bfloat16") return FormatKind::kBf16;
  for (const auto& row : kKinds) {
    if (name == row.name) return row.kind;
  }
  std::string known;
  for (const auto& row : kKinds) known += (known.empty() ? "" : ", ") + std::string(row.name);
  return invalid_argument(fmt::format("unknown format '{}'; there are {}", name, known),
                          "candidates", "`bitalloc formats` lists them");
}

Status apply_parameter(std::string_view parameter, Format& format) {
  const bool scaled = format.kind != FormatKind::kBf16;
  const bool blocked = format.kind == FormatKind::kNvfp4;
  if (scaled && parameter == "scale=constant") {
    format.scale = ScalePolicy::kConstant;
  } else if (scaled && parameter == "scale=calibrated") {
    format.scale = ScalePolicy::kCalibrated;
  } else if (blocked && parameter == "encoding=served") {
    format.encoding = Encoding::kServed;
  } else if (blocked && parameter == "encoding=modelopt") {
    format.encoding = Encoding::kModelopt;
  } else {
    return invalid_argument(
        fmt::format("format '{}' has no parameter '{}'", row_of(format.kind).name, parameter),
        "candidates", "parameters: scale=constant|calibrated; nvfp4 also encoding=served|modelopt");
  }
  return {};
}

}  // namespace

double bits_per_element(const Format& format) { return row_of(format.kind).bits; }

std::string format_name(const Format& format) {
  std::string parameters;
  if (format.encoding == Encoding::kModelopt) parameters = "encoding=modelopt";
  if (format.scale == ScalePolicy::kCalibrated) {
    parameters += parameters.empty() ? "scale=calibrated" : ",scale=calibrated";
  }
  const std::string name = row_of(format.kind).name;
  return parameters.empty() ? name : name + "[" + parameters + "]";
}

Result<Format> parse_format(std::string_view text) {
  const size_t open = text.find('[');
  Format format;
  BA_ASSIGN_OR_RETURN(format.kind, parse_kind(text.substr(0, open)));
  if (open == std::string_view::npos) return format;
  if (text.back() != ']') {
    return invalid_argument(fmt::format("format '{}' lacks its closing bracket", text),
                            "candidates");
  }
  std::string_view rest = text.substr(open + 1, text.size() - open - 2);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    BA_RETURN_IF_ERROR(apply_parameter(rest.substr(0, comma), format));
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  return format;
}

std::string candidate_name(const Candidate& candidate) {
  return format_name(candidate.k) + "/" + format_name(candidate.v);
}

Result<Candidate> parse_candidate(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) {
    BA_ASSIGN_OR_RETURN(const Format both, parse_format(text));
    return Candidate{both, both};
  }
  BA_ASSIGN_OR_RETURN(const Format k, parse_format(text.substr(0, slash)));
  BA_ASSIGN_OR_RETURN(const Format v, parse_format(text.substr(slash + 1)));
  return Candidate{k, v};
}

std::vector<FormatDescription> all_formats() {
  std::vector<FormatDescription> all;
  for (const auto& row : kKinds) {
    all.push_back({Format{row.kind}, row.granularity, row.served_by, row.description});
  }
  return all;
}

}  // namespace bitalloc
