// JSON from outside (files, the wire): bounded parsing, and field access whose errors name the
// field.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/status.h"

namespace bitalloc {

using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 32;

// Parses `text`; `what` names the source in errors ("config.json", "header of status").
// Errors: kInvalidArgument on a syntax error (with the byte) or when nested deeper than
// `max_depth`.
Result<Json> parse_json(std::string_view text, const std::string& what,
                        int max_depth = kMaxJsonDepth);

// `value` is a whole number, low…high.
bool is_whole_number(const Json& value, int64_t low, uint64_t high);
// `value` is a number, and of no larger magnitude than `limit`.
bool is_number_within(const Json& value, double limit);

// Whether get<T>() would give the number that is there: the library makes integers of 1e300 (which
// is undefined), 2.5 and true without a word.
template <typename T>
struct HoldsNumber {
  static bool in(const Json& value) {
    if constexpr (std::is_same_v<T, bool> || !std::is_arithmetic_v<T>) {
      return true;
    } else if constexpr (std::is_integral_v<T>) {
      return is_whole_number(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    } else {
      return is_number_within(value, std::numeric_limits<T>::max());
    }
  }
};
template <typename T>
struct HoldsNumber<std::vector<T>> {
  static bool in(const Json& value) {
    if (!value.is_array()) return true;  // get() says so
    return std::all_of(value.begin(), value.end(), HoldsNumber<T>::in);
  }
};

// object[key] as T. `where` names the object in errors. Errors: kInvalidArgument when the key is
// missing, has another type, or is a number that T cannot hold; `field` of the error is
// "where.key".
template <typename T>
Result<T> json_field(const Json& object, const std::string& key, const std::string& where) {
  const std::string field = where + "." + key;
  if (!object.is_object() || !object.contains(key)) {
    return invalid_argument(fmt::format("{} is missing", field), field);
  }
  if (!HoldsNumber<T>::in(object.at(key))) {
    return invalid_argument(
        fmt::format("{} is not {} within range", field,
                    std::is_integral_v<T> ? "a whole number" : "made of numbers"),
        field);
  }
  try {
    return object.at(key).get<T>();
  } catch (const Json::exception&) {
    return invalid_argument(
        fmt::format("{} has the wrong type ({})", field, object.at(key).type_name()), field);
  }
}

// The same, with a value for a missing (or null) key.
template <typename T>
Result<T> json_field_or(const Json& object, const std::string& key, const std::string& where,
                        T fallback) {
  if (!object.is_object() || !object.contains(key) || object.at(key).is_null()) return fallback;
  return json_field<T>(object, key, where);
}

// {"code", "message", "field", "hint"}: errors on the wire and in `--json`.
Json error_to_json(const Error& error);
Error error_from_json(const Json& json);

}  // namespace bitalloc
