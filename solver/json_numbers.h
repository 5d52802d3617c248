// Numbers and tables out of a JSON document; errors (kInvalidArgument) name the entry.
//
// Thread-safe.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace bitalloc {

Result<double> to_number(const Json& value, const std::string& field);
Result<int> to_int(const Json& value, const std::string& field);
Result<std::string> to_text(const Json& value, const std::string& field);

// [convert(entry, "field[k]")…] of a list.
template <typename Convert>
auto to_list(const Json& value, const std::string& field, const Convert& convert)
    -> Result<std::vector<std::decay_t<decltype(convert(value, field).value())>>> {
  if (!value.is_array()) {
    return invalid_argument(fmt::format("{} is {}, not a list", field, value.type_name()), field);
  }
  std::vector<std::decay_t<decltype(convert(value, field).value())>> list;
  for (std::size_t k = 0; k < value.size(); ++k) {
    BA_ASSIGN_OR_RETURN(auto entry, convert(value[k], fmt::format("{}[{}]", field, k)));
    list.push_back(std::move(entry));
  }
  return list;
}

Result<std::vector<double>> to_numbers(const Json& value, const std::string& field);
Result<std::vector<int>> to_ints(const Json& value, const std::string& field);
Result<std::vector<std::vector<double>>> to_table(const Json& value, const std::string& field);

}  // namespace bitalloc
