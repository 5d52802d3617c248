#include "solver/solve_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "solver/instance.h"
#include "solver/json_numbers.h"

namespace bitalloc {
namespace {

// Letters to change, add or leave out to make `b` of `a`.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// Other keys are notes; but a constraint that is spelt wrong must not be left out silently.
Status check_spelling(const Json& document) {
  const char* const known[] = {"bits",   "width",       "score",   "budgets", "rows",
                               "pins",   "exclude",     "groups",  "pairs",   "max_distinct",
                               "labels", "max_changes", "deployed"};
  for (const auto& [key, value] : document.items()) {
    if (std::find(std::begin(known), std::end(known), key) != std::end(known)) continue;
    for (const char* name : known) {
      const bool alike = edit_distance(key, name) <= (std::strlen(name) > 4 ? 2 : 1);
      if (!alike) continue;
      return invalid_argument(fmt::format("unknown key \"{}\": is it \"{}\"?", key, name), key,
                              "call notes something less like it");
    }
  }
  return {};
}

Result<Json> parse_object(std::string_view text) {
  try {
    Json document = Json::parse(text);
    if (!document.is_object()) {
      return invalid_argument(
          fmt::format("an instance is a JSON object, this is {}", document.type_name()));
    }
    BA_RETURN_IF_ERROR(check_spelling(document));
    for (const char* key : {"bits", "width", "score"}) {
      if (!document.contains(key)) {
        return invalid_argument(fmt::format("the key \"{}\" is missing", key), key);
      }
    }
    return document;
  } catch (const std::exception& error) {
    return invalid_argument(fmt::format("not JSON: {}", error.what()));
  }
}

bool has_constraints(const Constraints& constraints) {
  return !constraint_names(constraints).empty();
}

Result<Solution> solve_one(const SolveFile& file, std::size_t k, const SolveOptions& options) {
  if (!has_constraints(file.constraints)) {
    return solve(file.problem, file.budgets[k], options);
  }
  return solve(file.problem, constraints_of(file, k), options);
}

}  // namespace

Constraints constraints_of(const SolveFile& file, std::size_t k) {
  Constraints constraints = file.constraints;
  if (!file.budgets.empty()) {
    constraints.effective_bits = file.budgets[k];
  }
  return constraints;
}

Result<SolveFile> parse_solve_file(std::string_view text) {
  BA_ASSIGN_OR_RETURN(const Json document, parse_object(text));
  SolveFile file;
  BA_ASSIGN_OR_RETURN(file.problem.bits, to_table(document["bits"], "bits"));
  BA_ASSIGN_OR_RETURN(file.problem.score, to_table(document["score"], "score"));
  BA_ASSIGN_OR_RETURN(file.problem.width, to_numbers(document["width"], "width"));
  if (document.contains("budgets")) {
    BA_ASSIGN_OR_RETURN(file.budgets, to_numbers(document["budgets"], "budgets"));
  }
  BA_RETURN_IF_ERROR(validate(file.problem));
  BA_ASSIGN_OR_RETURN(file.constraints, constraints_from_json(document, file.problem));
  if (document.contains("budgets") && file.budgets.empty()) {
    return invalid_argument("budgets is empty: name at least one", "budgets");
  }
  if (file.budgets.empty() && !has_constraints(file.constraints)) {
    return invalid_argument("there are neither \"budgets\" nor constraints", "budgets");
  }
  return file;
}

Result<std::vector<Solution>> solve_budgets(const SolveFile& file, const SolveOptions& options) {
  std::vector<Solution> solutions;
  if (file.budgets.empty()) {
    BA_ASSIGN_OR_RETURN(Solution solution, solve_one(file, 0, options));
    solutions.push_back(std::move(solution));
  }
  for (std::size_t k = 0; k < file.budgets.size(); ++k) {
    auto solution = solve_one(file, k, options);
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
  BA_CHECK(solutions.size() == std::max<std::size_t>(file.budgets.size(), 1),
           "one solution a budget");
  Json list = Json::array();
  for (std::size_t k = 0; k < solutions.size(); ++k) {
    const Solution& solution = solutions[k];
    list.push_back({{"budget", file.budgets.empty() ? Json() : Json(file.budgets[k])},
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
