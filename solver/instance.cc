#include "solver/instance.h"

#include <cmath>

#include "solver/json_numbers.h"

namespace bitalloc {
namespace {

using json = Json;

// entry[key] by `convert`; an error when it is missing.
template <typename Convert>
auto member(const Json& entry, const std::string& field, const char* key, const Convert& convert)
    -> decltype(convert(entry, field)) {
  const std::string name = fmt::format("{}.{}", field, key);
  if (!entry.is_object()) {
    return invalid_argument(fmt::format("{} is {}, not an object", field, entry.type_name()),
                            field);
  }
  if (!entry.contains(key)) {
    return invalid_argument(fmt::format("{} is missing", name), name);
  }
  return convert(entry[key], name);
}

Result<std::string> name_of(const Json& entry, const std::string& field) {
  if (entry.is_object() && !entry.contains("name")) {
    return std::string();
  }
  return member(entry, field, "name", to_text);
}

Result<double> bound(const Json& entry, const std::string& field, const char* key, double none) {
  if (!entry.contains(key)) {
    return none;
  }
  return member(entry, field, key, to_number);
}

Result<Row> to_row(const Json& entry, const std::string& field) {
  Row row;
  BA_ASSIGN_OR_RETURN(row.name, name_of(entry, field));
  BA_ASSIGN_OR_RETURN(row.coefficient, member(entry, field, "coefficient", to_table));
  BA_ASSIGN_OR_RETURN(row.lower, bound(entry, field, "lower", row.lower));
  BA_ASSIGN_OR_RETURN(row.upper, bound(entry, field, "upper", row.upper));
  return row;
}

// Pins and exclusions.
template <typename T>
Result<T> to_taken(const Json& entry, const std::string& field) {
  T taken;
  BA_ASSIGN_OR_RETURN(taken.name, name_of(entry, field));
  BA_ASSIGN_OR_RETURN(taken.site, member(entry, field, "site", to_int));
  BA_ASSIGN_OR_RETURN(taken.candidate, member(entry, field, "candidate", to_int));
  return taken;
}

Result<Group> to_group(const Json& entry, const std::string& field) {
  Group group;
  BA_ASSIGN_OR_RETURN(group.name, name_of(entry, field));
  BA_ASSIGN_OR_RETURN(group.sites, member(entry, field, "sites", to_ints));
  return group;
}

Result<std::pair<int, int>> to_two(const Json& value, const std::string& field) {
  BA_ASSIGN_OR_RETURN(const std::vector<int> both, to_ints(value, field));
  if (both.size() != 2) {
    return invalid_argument(fmt::format("{} has {} entries, not 2", field, both.size()), field);
  }
  return std::pair(both[0], both[1]);
}

Result<PairRule> to_pair(const Json& entry, const std::string& field) {
  PairRule pair;
  BA_ASSIGN_OR_RETURN(pair.name, name_of(entry, field));
  BA_ASSIGN_OR_RETURN(const auto sites, member(entry, field, "sites", to_two));
  pair.first = sites.first;
  pair.second = sites.second;
  BA_ASSIGN_OR_RETURN(
      pair.allowed, member(entry, field, "allowed", [](const Json& list, const std::string& name) {
        return to_list(list, name, to_two);
      }));
  return pair;
}

// document[key] into `list`, when it is there.
template <typename T, typename Convert>
Status read_list(const Json& document, const char* key, const Convert& convert,
                 std::vector<T>* list) {
  if (document.contains(key)) {
    BA_ASSIGN_OR_RETURN(*list, to_list(document[key], key, convert));
  }
  return {};
}

// A limit and the table that it needs come together. True when they are there.
Result<bool> has_both(const Json& document, const char* limit, const char* table) {
  if (document.contains(limit) != document.contains(table)) {
    const char* missing = document.contains(limit) ? table : limit;
    return invalid_argument(
        fmt::format("\"{}\" and \"{}\" come together, \"{}\" is missing", limit, table, missing),
        missing);
  }
  return document.contains(limit);
}

Status read_limits(const Json& document, Constraints* constraints) {
  BA_ASSIGN_OR_RETURN(const bool distinct, has_both(document, "max_distinct", "labels"));
  if (distinct) {
    constraints->distinct.emplace();
    BA_ASSIGN_OR_RETURN(constraints->distinct->limit,
                        to_int(document["max_distinct"], "max_distinct"));
    const auto texts = [](const Json& list, const std::string& field) {
      return to_list(list, field, to_text);
    };
    BA_ASSIGN_OR_RETURN(constraints->distinct->labels,
                        to_list(document["labels"], "labels", texts));
  }
  BA_ASSIGN_OR_RETURN(const bool changes, has_both(document, "max_changes", "deployed"));
  if (changes) {
    constraints->changes.emplace();
    BA_ASSIGN_OR_RETURN(constraints->changes->limit,
                        to_int(document["max_changes"], "max_changes"));
    BA_ASSIGN_OR_RETURN(constraints->changes->deployed, to_ints(document["deployed"], "deployed"));
  }
  return {};
}

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

Result<Constraints> constraints_from_json(const Json& document, const Problem& problem) {
  Constraints constraints;
  BA_RETURN_IF_ERROR(read_list(document, "rows", to_row, &constraints.rows));
  BA_RETURN_IF_ERROR(read_list(document, "pins", to_taken<Pin>, &constraints.pins));
  BA_RETURN_IF_ERROR(read_list(document, "exclude", to_taken<Exclusion>, &constraints.exclusions));
  BA_RETURN_IF_ERROR(read_list(document, "groups", to_group, &constraints.groups));
  BA_RETURN_IF_ERROR(read_list(document, "pairs", to_pair, &constraints.pairs));
  BA_RETURN_IF_ERROR(read_limits(document, &constraints));
  BA_RETURN_IF_ERROR(validate(problem, constraints));
  return constraints;
}

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
