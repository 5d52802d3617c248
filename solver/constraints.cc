#include "solver/constraints.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "solver/integer_problem.h"

namespace bitalloc {
namespace {

constexpr double kMaxCoefficient = 1e200;

Status check_index(int index, std::size_t count, const std::string& field, const char* what) {
  if (index < 0 || static_cast<std::size_t>(index) >= count) {
    return invalid_argument(
        fmt::format("{} is {}: there are {} {}, counted from 0", field, index, count, what), field);
  }
  return {};
}

Status check_choice(const Problem& problem, int site, int candidate, const std::string& where) {
  BA_RETURN_IF_ERROR(check_index(site, problem.num_sites(), where + ".site", "sites"));
  return check_index(candidate, problem.bits[site].size(), where + ".candidate",
                     "candidates at that site");
}

template <typename T>
Status check_shape(const Problem& problem, const std::vector<std::vector<T>>& table,
                   const std::string& field) {
  if (table.size() != problem.num_sites()) {
    return invalid_argument(
        fmt::format("{} has {} sites, the problem {}", field, table.size(), problem.num_sites()),
        field);
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].size() != problem.bits[i].size()) {
      const std::string entry = fmt::format("{}[{}]", field, i);
      return invalid_argument(fmt::format("{} has {} candidates, bits[{}] has {}", entry,
                                          table[i].size(), i, problem.bits[i].size()),
                              entry);
    }
  }
  return {};
}

Status check_row(const Problem& problem, const Row& row, const std::string& field) {
  BA_RETURN_IF_ERROR(check_shape(problem, row.coefficient, field + ".coefficient"));
  for (std::size_t i = 0; i < row.coefficient.size(); ++i) {
    for (std::size_t j = 0; j < row.coefficient[i].size(); ++j) {
      if (!(std::fabs(row.coefficient[i][j]) <= kMaxCoefficient)) {
        const std::string entry = fmt::format("{}.coefficient[{}][{}]", field, i, j);
        return invalid_argument(fmt::format("{} is {}: it must be finite, at most {:g} from zero",
                                            entry, row.coefficient[i][j], kMaxCoefficient),
                                entry);
      }
    }
  }
  if (std::isnan(row.lower) || row.lower == INFINITY) {
    return invalid_argument(fmt::format("{}.lower is {}", field, row.lower), field + ".lower");
  }
  if (std::isnan(row.upper) || row.upper == -INFINITY) {
    return invalid_argument(fmt::format("{}.upper is {}", field, row.upper), field + ".upper");
  }
  if (std::isinf(row.lower) && std::isinf(row.upper)) {
    return invalid_argument(field + " has neither a lower nor an upper bound", field);
  }
  return {};
}

Status check_group(const Problem& problem, const Group& group, const std::string& field) {
  if (group.sites.empty()) {
    return invalid_argument(field + ".sites is empty", field + ".sites");
  }
  for (std::size_t k = 0; k < group.sites.size(); ++k) {
    BA_RETURN_IF_ERROR(check_index(group.sites[k], problem.num_sites(),
                                   fmt::format("{}.sites[{}]", field, k), "sites"));
  }
  return {};
}

Status check_pair(const Problem& problem, const PairRule& pair, const std::string& field) {
  BA_RETURN_IF_ERROR(check_index(pair.first, problem.num_sites(), field + ".sites[0]", "sites"));
  BA_RETURN_IF_ERROR(check_index(pair.second, problem.num_sites(), field + ".sites[1]", "sites"));
  if (pair.first == pair.second) {
    return invalid_argument(field + ".sites names one site twice", field + ".sites");
  }
  for (std::size_t k = 0; k < pair.allowed.size(); ++k) {
    BA_RETURN_IF_ERROR(check_index(pair.allowed[k].first, problem.bits[pair.first].size(),
                                   fmt::format("{}.allowed[{}][0]", field, k),
                                   "candidates at that site"));
    BA_RETURN_IF_ERROR(check_index(pair.allowed[k].second, problem.bits[pair.second].size(),
                                   fmt::format("{}.allowed[{}][1]", field, k),
                                   "candidates at that site"));
  }
  return {};
}

Status check_limits(const Problem& problem, const Constraints& constraints) {
  if (const auto& distinct = constraints.distinct) {
    if (distinct->limit < 1) {
      return invalid_argument(
          fmt::format("max_distinct is {}: it must be at least 1", distinct->limit),
          "max_distinct");
    }
    BA_RETURN_IF_ERROR(check_shape(problem, distinct->labels, "labels"));
  }
  if (const auto& changes = constraints.changes) {
    if (changes->limit < 0) {
      return invalid_argument(
          fmt::format("max_changes is {}: it must not be negative", changes->limit), "max_changes");
    }
    if (changes->deployed.size() != problem.num_sites()) {
      return invalid_argument(fmt::format("deployed has {} sites, the problem {}",
                                          changes->deployed.size(), problem.num_sites()),
                              "deployed");
    }
    for (std::size_t i = 0; i < changes->deployed.size(); ++i) {
      if (changes->deployed[i] != -1) {
        BA_RETURN_IF_ERROR(check_index(changes->deployed[i], problem.bits[i].size(),
                                       fmt::format("deployed[{}]", i), "candidates at that site"));
      }
    }
  }
  return {};
}

bool within(const Problem& problem, const Row& row, const std::vector<int>& choice) {
  // What rounded whole numbers may differ by on top of the tolerance, see whole_numbers.h.
  constexpr long double kSlack = 1 + 1e-6L;
  long double sum = 0;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    sum += row.coefficient[i][choice[i]];
  }
  const auto tolerance = [&](double bound) { return kSlack * row_tolerance(row, bound); };
  return (std::isinf(row.upper) || sum <= row.upper + tolerance(row.upper)) &&
         (std::isinf(row.lower) || sum >= row.lower - tolerance(row.lower));
}

bool budget_met(const Problem& problem, double budget, const std::vector<int>& choice) {
  long double bits = 0;
  long double width = 0;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    bits += static_cast<long double>(problem.width[i]) * problem.bits[i][choice[i]];
    width += problem.width[i];
  }
  return bits <= width * budget + 1.0001L * kBudgetTolerance * std::fabs(width * budget);
}

bool agrees(const Group& group, const std::vector<int>& choice) {
  return std::all_of(group.sites.begin(), group.sites.end(),
                     [&](int site) { return choice[site] == choice[group.sites.front()]; });
}

bool allows(const PairRule& pair, const std::vector<int>& choice) {
  return std::find(pair.allowed.begin(), pair.allowed.end(),
                   std::pair(choice[pair.first], choice[pair.second])) != pair.allowed.end();
}

int count_labels(const DistinctLimit& distinct, const std::vector<int>& choice) {
  std::set<std::string> used;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    used.insert(distinct.labels[i][choice[i]]);
  }
  return static_cast<int>(used.size());
}

int count_changes(const ChangeLimit& changes, const std::vector<int>& choice) {
  int count = 0;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    count += changes.deployed[i] != -1 && changes.deployed[i] != choice[i] ? 1 : 0;
  }
  return count;
}

std::string named(const std::string& name, std::string place) {
  return name.empty() ? std::move(place) : name;
}

}  // namespace

Status validate(const Problem& problem, const Constraints& constraints) {
  if (constraints.effective_bits && !std::isfinite(*constraints.effective_bits)) {
    return invalid_argument(fmt::format("budget is {}: it must be a finite number of bits",
                                        *constraints.effective_bits),
                            "budget");
  }
  for (std::size_t k = 0; k < constraints.rows.size(); ++k) {
    BA_RETURN_IF_ERROR(check_row(problem, constraints.rows[k], fmt::format("rows[{}]", k)));
  }
  for (std::size_t k = 0; k < constraints.pins.size(); ++k) {
    const Pin& pin = constraints.pins[k];
    BA_RETURN_IF_ERROR(check_choice(problem, pin.site, pin.candidate, fmt::format("pins[{}]", k)));
  }
  for (std::size_t k = 0; k < constraints.exclusions.size(); ++k) {
    const Exclusion& exclusion = constraints.exclusions[k];
    BA_RETURN_IF_ERROR(
        check_choice(problem, exclusion.site, exclusion.candidate, fmt::format("exclude[{}]", k)));
  }
  for (std::size_t k = 0; k < constraints.groups.size(); ++k) {
    BA_RETURN_IF_ERROR(check_group(problem, constraints.groups[k], fmt::format("groups[{}]", k)));
  }
  for (std::size_t k = 0; k < constraints.pairs.size(); ++k) {
    BA_RETURN_IF_ERROR(check_pair(problem, constraints.pairs[k], fmt::format("pairs[{}]", k)));
  }
  return check_limits(problem, constraints);
}

std::vector<std::string> constraint_names(const Constraints& constraints) {
  std::vector<std::string> names;
  if (constraints.effective_bits) {
    names.push_back("budget");
  }
  const auto add = [&](const auto& list, const char* place) {
    for (std::size_t k = 0; k < list.size(); ++k) {
      names.push_back(named(list[k].name, fmt::format("{}[{}]", place, k)));
    }
  };
  add(constraints.rows, "rows");
  add(constraints.pins, "pins");
  add(constraints.exclusions, "exclude");
  add(constraints.groups, "groups");
  add(constraints.pairs, "pairs");
  if (constraints.distinct) {
    names.push_back(named(constraints.distinct->name, "max_distinct"));
  }
  if (constraints.changes) {
    names.push_back(named(constraints.changes->name, "max_changes"));
  }
  return names;
}

Constraints subset(const Constraints& constraints, const std::vector<bool>& kept) {
  const std::vector<std::string> names = constraint_names(constraints);
  BA_CHECK(kept.size() == names.size(), "one flag a constraint");
  Constraints out;
  std::size_t place = 0;
  if (constraints.effective_bits && kept[place++]) {
    out.effective_bits = constraints.effective_bits;
  }
  const auto take = [&](const auto& from, auto* to) {
    for (const auto& constraint : from) {
      if (kept[place]) {
        to->push_back(constraint);
        to->back().name = names[place];
      }
      ++place;
    }
  };
  take(constraints.rows, &out.rows);
  take(constraints.pins, &out.pins);
  take(constraints.exclusions, &out.exclusions);
  take(constraints.groups, &out.groups);
  take(constraints.pairs, &out.pairs);
  if (constraints.distinct && kept[place++]) {
    out.distinct = constraints.distinct;
  }
  if (constraints.changes && kept[place++]) {
    out.changes = constraints.changes;
  }
  return out;
}

double row_tolerance(const Row& row, double bound) {
  long double magnitude = 0;
  for (const auto& site : row.coefficient) {
    double largest = 0;
    for (const double coefficient : site) {
      largest = std::max(largest, std::fabs(coefficient));
    }
    magnitude += largest;
  }
  return static_cast<double>(kBudgetTolerance * std::fabs(bound) + 1e-15L * magnitude);
}

std::vector<std::string> violations(const Problem& problem, const Constraints& constraints,
                                    const std::vector<int>& choice) {
  std::vector<bool> met;
  if (constraints.effective_bits) {
    met.push_back(budget_met(problem, *constraints.effective_bits, choice));
  }
  for (const Row& row : constraints.rows) {
    met.push_back(within(problem, row, choice));
  }
  for (const Pin& pin : constraints.pins) {
    met.push_back(choice[pin.site] == pin.candidate);
  }
  for (const Exclusion& exclusion : constraints.exclusions) {
    met.push_back(choice[exclusion.site] != exclusion.candidate);
  }
  for (const Group& group : constraints.groups) {
    met.push_back(agrees(group, choice));
  }
  for (const PairRule& pair : constraints.pairs) {
    met.push_back(allows(pair, choice));
  }
  if (constraints.distinct) {
    met.push_back(count_labels(*constraints.distinct, choice) <= constraints.distinct->limit);
  }
  if (constraints.changes) {
    met.push_back(count_changes(*constraints.changes, choice) <= constraints.changes->limit);
  }
  const std::vector<std::string> names = constraint_names(constraints);
  std::vector<std::string> broken;
  for (std::size_t k = 0; k < met.size(); ++k) {
    if (!met[k]) {
      broken.push_back(names[k]);
    }
  }
  return broken;
}

}  // namespace bitalloc
