#include "solver/solve_file.h"

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>

namespace bitalloc {
namespace {

using nlohmann::json;

Result<double> to_number(const json& value, const std::string& field) {
  if (!value.is_number()) {
    return invalid_argument(fmt::format("{} is {}, not a number", field, value.type_name()), field);
  }
  return value.get<double>();
}

Result<std::vector<double>> to_numbers(const json& value, const std::string& field) {
  if (!value.is_array()) {
    return invalid_argument(fmt::format("{} is {}, not a list", field, value.type_name()), field);
  }
  std::vector<double> numbers;
  for (std::size_t k = 0; k < value.size(); ++k) {
    BA_ASSIGN_OR_RETURN(const double number, to_number(value[k], fmt::format("{}[{}]", field, k)));
    numbers.push_back(number);
  }
  return numbers;
}

Result<std::vector<std::vector<double>>> to_rows(const json& value, const std::string& field) {
  if (!value.is_array()) {
    return invalid_argument(fmt::format("{} is {}, not a list", field, value.type_name()), field);
  }
  std::vector<std::vector<double>> rows;
  for (std::size_t i = 0; i < value.size(); ++i) {
    BA_ASSIGN_OR_RETURN(auto row, to_numbers(value[i], fmt::format("{}[{}]", field, i)));
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<json> parse_object(std::string_view text) {
  try {
    json document = json::parse(text);
    if (!document.is_object()) {
      return invalid_argument(
          fmt::format("an instance is a JSON object, this is {}", document.type_name()));
    }
    for (const char* key : {"bits", "width", "score", "budgets"}) {
      if (!document.contains(key)) {
        return invalid_argument(fmt::format("the key \"{}\" is missing", key), key);
      }
    }
    return document;
  } catch (const std::exception& error) {
    return invalid_argument(fmt::format("not JSON: {}", error.what()));
  }
}

}  // namespace

Result<SolveFile> parse_solve_file(std::string_view text) {
  BA_ASSIGN_OR_RETURN(const json document, parse_object(text));
  SolveFile file;
  BA_ASSIGN_OR_RETURN(file.problem.bits, to_rows(document["bits"], "bits"));
  BA_ASSIGN_OR_RETURN(file.problem.score, to_rows(document["score"], "score"));
  BA_ASSIGN_OR_RETURN(file.problem.width, to_numbers(document["width"], "width"));
  BA_ASSIGN_OR_RETURN(file.budgets, to_numbers(document["budgets"], "budgets"));
  BA_RETURN_IF_ERROR(validate(file.problem));
  if (file.budgets.empty()) {
    return invalid_argument("budgets is empty: name at least one", "budgets");
  }
  return file;
}

Result<std::vector<Solution>> solve_budgets(const SolveFile& file, const SolveOptions& options) {
  std::vector<Solution> solutions;
  for (std::size_t k = 0; k < file.budgets.size(); ++k) {
    auto solution = solve(file.problem, file.budgets[k], options);
    if (!solution.ok()) {
      Error error = std::move(solution).error();
      if (error.field == "budget") {
        error.field = fmt::format("budgets[{}]", k);
      }
      return std::move(error).with_context(fmt::format("budgets[{}]", k));
    }
    solutions.push_back(std::move(solution).value());
  }
  return solutions;
}

std::string solutions_to_json(const SolveFile& file, const std::vector<Solution>& solutions) {
  BA_CHECK(solutions.size() == file.budgets.size(), "one solution a budget");
  json list = json::array();
  for (std::size_t k = 0; k < solutions.size(); ++k) {
    const Solution& solution = solutions[k];
    list.push_back({{"budget", file.budgets[k]},
                    {"objective", solution.objective},
                    {"effective_bits", solution.effective_bits},
                    {"choice", solution.choice},
                    {"proven_optimal", solution.proven_optimal},
                    {"gap", solution.gap},
                    {"lower_bound", solution.lower_bound},
                    {"cbc", cbc_verdict_name(solution.cbc)},
                    {"solve_ms", solution.solve_ms}});
  }
  return list.dump();
}

}  // namespace bitalloc
