#include "solver/json_numbers.h"

namespace bitalloc {

Result<double> to_number(const Json& value, const std::string& field) {
  if (!value.is_number()) {
    return invalid_argument(fmt::format("{} is {}, not a number", field, value.type_name()), field);
  }
  return value.get<double>();
}

Result<int> to_int(const Json& value, const std::string& field) {
  if (!HoldsNumber<int>::in(value)) {
    return invalid_argument(fmt::format("{} is {}, not a whole number", field, value.dump()),
                            field);
  }
  return value.get<int>();
}

Result<std::string> to_text(const Json& value, const std::string& field) {
  if (!value.is_string()) {
    return invalid_argument(fmt::format("{} is {}, not a text", field, value.type_name()), field);
  }
  return value.get<std::string>();
}

Result<std::vector<double>> to_numbers(const Json& value, const std::string& field) {
  return to_list(value, field, to_number);
}

Result<std::vector<int>> to_ints(const Json& value, const std::string& field) {
  return to_list(value, field, to_int);
}

Result<std::vector<std::vector<double>>> to_table(const Json& value, const std::string& field) {
  return to_list(value, field, to_numbers);
}

}  // namespace bitalloc
