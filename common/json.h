// JSON from outside (files, the wire): bounded parsing, and field access whose errors name the
// field.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/status.h"

namespace bitalloc {

using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 32;

// Parses `text`; `what` names the source in errors ("config.json", "header of status").
// Errors: kInvalidArgument on a syntax error (with the byte) or when nested deeper than
// `max_depth`.
Result<Json> parse_json(std::string_view text, const std::string& what,
                        int max_depth = kMaxJsonDepth);

// object[key] as T. `where` names the object in errors. Errors: kInvalidArgument when the key is
// missing or has another type; `field` of the error is "where.key".
template <typename T>
Result<T> json_field(const Json& object, const std::string& key, const std::string& where) {
  const std::string field = where + "." + key;
  if (!object.is_object() || !object.contains(key)) {
    return invalid_argument(fmt::format("{} is missing", field), field);
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
