#include "solver/instance.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace bitalloc {
namespace {

using nlohmann::json;

json named(const std::string& name, json object) {
  if (!name.empty()) {
    object["name"] = name;
  }
  return object;
}

json row_json(const Row& row) {
  json object = named(row.name, {{"coefficient", row.coefficient}});
  if (std::isfinite(row.lower)) {
    object["lower"] = row.lower;
  }
  if (std::isfinite(row.upper)) {
    object["upper"] = row.upper;
  }
  return object;
}

// [to_json(entry)…] under `key`, when there is any.
template <typename T, typename ToJson>
void add_list(const char* key, const std::vector<T>& list, const ToJson& to_json, json* document) {
  for (const T& entry : list) {
    (*document)[key].push_back(to_json(entry));
  }
}

}  // namespace

std::string instance_to_json(const Problem& problem, const Constraints& constraints) {
  json document = {{"bits", problem.bits}, {"width", problem.width}, {"score", problem.score}};
  if (constraints.effective_bits) {
    document["budgets"] = {*constraints.effective_bits};
  }
  const auto choice = [](const auto& c) {
    return named(c.name, {{"site", c.site}, {"candidate", c.candidate}});
  };
  add_list("rows", constraints.rows, row_json, &document);
  add_list("pins", constraints.pins, choice, &document);
  add_list("exclude", constraints.exclusions, choice, &document);
  add_list(
      "groups", constraints.groups,
      [](const Group& group) {
        return named(group.name, {{"sites", group.sites}});
      },
      &document);
  add_list(
      "pairs", constraints.pairs,
      [](const PairRule& pair) {
        return named(pair.name, {{"sites", {pair.first, pair.second}}, {"allowed", pair.allowed}});
      },
      &document);
  if (constraints.distinct) {
    document["max_distinct"] = constraints.distinct->limit;
    document["labels"] = constraints.distinct->labels;
  }
  if (constraints.changes) {
    document["max_changes"] = constraints.changes->limit;
    document["deployed"] = constraints.changes->deployed;
  }
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace bitalloc
