#include "kernels/formats/format.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "kernels/formats/catalogue.h"
#include "kernels/formats/text.h"

namespace bitalloc {
namespace {

constexpr int64_t kLongestRow = 1024;  // kLongestGroup of kernels/group.h

Error unusable(const std::string& message,
               const std::string& hint = "`bitalloc formats` lists them") {
  return invalid_argument(message, "candidates", hint);
}

Result<const FormatRow*> find_row(std::string_view name) {
  if (name == "fp8") name = "fp8_e4m3";
  if (name == "bfloat16") name = "bf16";
  std::vector<const char*> known;
  for (const FormatRow& row : format_catalogue()) {
    if (name == row.name) return &row;
    known.push_back(row.name);
  }
  return unusable(concat("unknown format '", name, "'; there are ", joined(known, ", ")));
}

// The value of a text, as it stands in Format.
std::optional<uint32_t> value_of(const ParameterUse& use, std::string_view text) {
  const auto& names = use.parameter->values;
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<uint32_t>(i);
  }
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const bool listed =
      std::find(use.numbers.begin(), use.numbers.end(), number) != use.numbers.end();
  if (!listed && (number == 0 || number > use.most)) return std::nullopt;
  return number == use.numbers.front() ? 0 : number;
}

Status apply_parameter(const FormatRow& row, std::string_view text, Format& format) {
  const size_t equals = text.find('=');
  for (const ParameterUse& use : row.parameters) {
    if (equals == std::string_view::npos || text.substr(0, equals) != use.parameter->name) continue;
    const auto value = value_of(use, text.substr(equals + 1));
    if (!value) break;
    use.parameter->set(format, *value);
    return {};
  }
  const std::vector<std::string> choices = parameter_choices(row);
  return unusable(concat("format '", row.name, "' has no parameter '", text, "'"),
                  choices.empty() ? concat(row.name, " has no parameters")
                                  : concat("parameters: ", joined(choices, "; ")));
}

// Parameters that only go together with others.
Status check_together(const Format& format, std::string_view text) {
  if (format.granularity == Granularity::kTokenHead && format.scale == ScalePolicy::kCalibrated) {
    return unusable(concat("format '", text, "': a token's own scale is not calibrated"),
                    "leave out scale=calibrated or granularity=token_head");
  }
  const bool channels = format.axis == Axis::kChannel;
  const Visibility rule = visibility_of(format);
  if (channels && (rule.see == See::kWindow || rule.see == See::kAfterPrefill)) {
    return unusable(concat("format '", text, "': groups along tokens are not stored so"),
                    "axis=channel goes with see=all and see=kivi");
  }
  if (channels && rule.see == See::kKivi && rule.window % group_of(format) != 0) {
    return unusable(concat("format '", text, "': a window of ", rule.window,
                           " does not hold whole groups of ", group_of(format)),
                    "make window a multiple of group");
  }
  if (rule.see == See::kAfterPrefill && rule.prefill == 0) {
    return unusable(concat("format '", text, "' does not say how long the prompt is"),
                    "add prefill=TOKENS");
  }
  if (rule.see == See::kAll && (format.window > 0 || format.prefill > 0)) {
    return unusable(concat("format '", text, "': with see=all there is no window and no prompt"),
                    "add see=window, see=kivi or see=after_prefill");
  }
  return {};
}

std::string value_text(const Parameter& parameter, uint32_t value) {
  return parameter.values.empty() ? std::to_string(value) : parameter.values[value];
}

}  // namespace

int64_t group_of(const Format& format) {
  for (const ParameterUse& use : catalogue_row(format.kind).parameters) {
    if (std::string_view(use.parameter->name) != "group") continue;
    return format.group > 0 ? format.group : use.numbers.front();
  }
  return 0;
}

Visibility visibility_of(const Format& format) {
  return {format.see, format.window > 0 ? format.window : 128, format.prefill};
}

double bits_per_element(const Format& format, const CacheShape& shape) {
  const double stored = catalogue_row(format.kind).bits(format, shape.head_dim);
  if (shape.context == 0) return stored;
  constexpr double kExactBits = 16;
  const auto context = static_cast<double>(shape.context);
  const auto exact =
      static_cast<double>(exact_tokens(visibility_of(format), shape.side, shape.context));
  return (stored * (context - exact) + kExactBits * exact) / context;
}

Status check_head_dim(const Format& format, int64_t head_dim) {
  const bool power_of_two = head_dim > 0 && (head_dim & (head_dim - 1)) == 0;
  if (format.rotate == Rotation::kHadamard && !power_of_two) {
    return unsupported(
        concat(format_name(format), " needs a head_dim that is a power of two, not ", head_dim),
        "candidates", "leave it out with --candidates");
  }
  if (head_dim > kLongestRow) {
    return unsupported(concat("a head_dim of ", head_dim, " is more than the ", kLongestRow,
                              " that a row may have"),
                       "candidates", "");
  }
  const int64_t multiple = catalogue_row(format.kind).head_dim_multiple;
  if (head_dim % multiple == 0) return {};
  return unsupported(concat(format_name(format), " needs a head_dim that is a multiple of ",
                            multiple, ", not ", head_dim),
                     "candidates", "leave it out with --candidates");
}

std::string format_name(const Format& format) {
  const FormatRow& row = catalogue_row(format.kind);
  std::vector<std::string> parameters;
  for (const ParameterUse& use : row.parameters) {
    const uint32_t value = use.parameter->get(format);
    if (value == 0) continue;
    parameters.push_back(concat(use.parameter->name, "=", value_text(*use.parameter, value)));
  }
  if (parameters.empty()) return row.name;
  return concat(row.name, "[", joined(parameters, ","), "]");
}

Result<Format> parse_format(std::string_view text) {
  const size_t open = text.find('[');
  BA_ASSIGN_OR_RETURN(const FormatRow* row, find_row(text.substr(0, open)));
  Format format;
  format.kind = row->kind;
  if (open == std::string_view::npos) return format;
  if (text.back() != ']') {
    return unusable(concat("format '", text, "' lacks its closing bracket"));
  }
  std::string_view rest = text.substr(open + 1, text.size() - open - 2);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    BA_RETURN_IF_ERROR(apply_parameter(*row, rest.substr(0, comma), format));
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  BA_RETURN_IF_ERROR(check_together(format, text));
  return format;
}

std::string candidate_name(const Candidate& candidate) {
  return format_name(candidate.k) + "/" + format_name(candidate.v);
}

Result<Candidate> parse_candidate(std::string_view text) {
  if (text == "kivi2" || text == "kivi4") {
    const std::string bits(text.substr(4));
    const std::string v = "int" + bits + "[group=32,arithmetic=fp16,see=kivi]";
    const std::string k = "int" + bits + "[group=32,axis=channel,arithmetic=fp16,see=kivi]";
    return parse_candidate(k + "/" + v);
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) {
    BA_ASSIGN_OR_RETURN(const Format both, parse_format(text));
    return Candidate{both, both};
  }
  BA_ASSIGN_OR_RETURN(const Format k, parse_format(text.substr(0, slash)));
  BA_ASSIGN_OR_RETURN(const Format v, parse_format(text.substr(slash + 1)));
  return Candidate{k, v};
}

}  // namespace bitalloc
