#include "common/json.h"

#include <cmath>

namespace bitalloc {

Result<Json> parse_json(std::string_view text, const std::string& what, int max_depth) {
  bool too_deep = false;
  const auto guard = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > max_depth) too_deep = true;
    return !too_deep;  // false drops the value, which keeps memory bounded
  };
  try {
    Json value = Json::parse(text, guard);
    if (too_deep) {
      return invalid_argument(fmt::format("{} is nested deeper than {}", what, max_depth), what);
    }
    return value;
  } catch (const Json::exception& e) {
    return invalid_argument(fmt::format("{} is not valid JSON: {}", what, e.what()), what);
  }
}

namespace {

// At most `limit` bytes, whole characters of UTF-8.
std::string shortened(std::string text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit) + "…";
}

}  // namespace
bool is_whole_number(const Json& value, int64_t low, uint64_t high) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= high;
  if (!value.is_number_integer()) return false;
  const auto number = value.get<int64_t>();
  return number >= low && (number < 0 || static_cast<uint64_t>(number) <= high);
}

bool is_number_within(const Json& value, double limit) {
  return value.is_number() && std::abs(value.get<double>()) <= limit;
}

Json error_to_json(const Error& error) {
  const auto text = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  return {{"code", error_code_name(error.code)},
          {"message", error.message},
          {"field", text(error.field)},
          {"hint", text(error.hint)}};
}

Error error_from_json(const Json& json) {
  // Errors of workers are stored and shown: what one may take is bounded.
  constexpr size_t kMaxMessageBytes = 4'096;
  constexpr size_t kMaxFieldBytes = 512;
  const auto text = [&](const char* key, size_t limit) {
    return json.is_object() && json.contains(key) && json[key].is_string()
               ? shortened(json[key].get<std::string>(), limit)
               : std::string();
  };
  return Error{error_code_from_name(text("code", kMaxFieldBytes)),
               text("message", kMaxMessageBytes), text("field", kMaxFieldBytes),
               text("hint", kMaxMessageBytes)};
}

}  // namespace bitalloc
