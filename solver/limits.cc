#include "solver/limits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "common/bytes_text.h"
#include "common/kv_memory.h"

namespace bitalloc {
namespace {

using Choices = std::vector<SiteChoices>;

Status check_names(const Json& json, const std::set<std::string>& known, const std::string& where) {
  if (!json.is_object()) return invalid_argument(where + " is not an object", where);
  for (const auto& [name, value] : json.items()) {
    if (known.contains(name)) continue;
    return invalid_argument(fmt::format("{}: unknown field '{}'", where, name), where + "." + name,
                            fmt::format("there are: {}", fmt::join(known, ", ")));
  }
  return {};
}

// Items of the list json[name]; none when it is missing.
Result<std::vector<Json>> list_field(const Json& json, const char* name, const std::string& where) {
  BA_ASSIGN_OR_RETURN(const Json list, json_field_or<Json>(json, name, where, Json::array()));
  if (list.is_array()) return std::vector<Json>(list.begin(), list.end());
  return invalid_argument(fmt::format("{}.{} is not a list", where, name), where + "." + name);
}

template <typename T>
Result<std::optional<T>> optional_field(const Json& json, const char* name,
                                        const std::string& where) {
  if (!json.contains(name) || json[name].is_null()) return std::optional<T>();
  BA_ASSIGN_OR_RETURN(T value, json_field<T>(json, name, where));
  return std::optional<T>(std::move(value));
}

Result<CostLimit> cost_from_json(const Json& json, const std::string& where) {
  BA_RETURN_IF_ERROR(check_names(json, {"name", "cost", "upper", "lower"}, where));
  CostLimit limit;
  BA_ASSIGN_OR_RETURN(limit.name, json_field<std::string>(json, "name", where));
  BA_ASSIGN_OR_RETURN(const Json costs, json_field<Json>(json, "cost", where));
  if (!costs.is_object()) {
    return invalid_argument(where + ".cost is not an object of candidate: number", where + ".cost");
  }
  for (const auto& [candidate, ignored] : costs.items()) {
    BA_ASSIGN_OR_RETURN(limit.cost[candidate],
                        json_field<double>(costs, candidate, where + ".cost"));
  }
  BA_ASSIGN_OR_RETURN(limit.upper, optional_field<double>(json, "upper", where));
  BA_ASSIGN_OR_RETURN(limit.lower, optional_field<double>(json, "lower", where));
  if (limit.upper || limit.lower) return limit;
  return invalid_argument(where + " has neither upper nor lower", where + ".upper");
}

Result<Deployed> deployed_from_json(const Json& json, const std::string& where) {
  BA_RETURN_IF_ERROR(check_names(json, {"candidates", "max_changes"}, where));
  Deployed deployed;
  using Map = std::map<std::string, std::string>;
  BA_ASSIGN_OR_RETURN(deployed.candidates, json_field<Map>(json, "candidates", where));
  BA_ASSIGN_OR_RETURN(deployed.max_changes, json_field<int>(json, "max_changes", where));
  return deployed;
}

// ---- constraints --------------------------------------------------------------------------------

// Finds sites and candidates among the choices.
class Resolver {
 public:
  Resolver(const SearchSpec& spec, const Choices& choices) : spec_(spec), choices_(choices) {}

  // Places in `choices` of the sites that `text` names.
  Result<std::vector<int>> sites(const std::string& text, const std::string& field) const {
    std::vector<int> places;
    if (text == "*") {
      for (size_t i = 0; i < choices_.size(); ++i) places.push_back(static_cast<int>(i));
      return places;
    }
    BA_ASSIGN_OR_RETURN(const size_t site, find_site(spec_, text, field));
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (choices_[i].site == site) places.push_back(static_cast<int>(i));
    }
    return places;  // empty: a site without scores in a partial answer
  }

  // Its index at the place.
  Result<int> candidate(int place, const std::string& name, const std::string& field) const {
    const Result<Candidate> wanted = parse_candidate(name);
    if (!wanted.ok()) {
      Error error = wanted.error();
      error.field = field;
      return error;
    }
    const auto& there = choices_[static_cast<size_t>(place)].choices;
    std::string known;
    for (size_t j = 0; j < there.size(); ++j) {
      if (there[j].candidate == *wanted) return static_cast<int>(j);
      known += (known.empty() ? "" : ", ") + candidate_name(there[j].candidate);
    }
    return invalid_argument(fmt::format("'{}' was not scored in this search", name), field,
                            "there are " + known);
  }

 private:
  const SearchSpec& spec_;
  const Choices& choices_;
};

Status add_pins(const Resolver& resolver, const Pins& pins, Constraints& constraints) {
  for (const auto& [site, candidate] : pins) {
    BA_ASSIGN_OR_RETURN(const std::vector<int> places, resolver.sites(site, "pins"));
    for (const int place : places) {
      BA_ASSIGN_OR_RETURN(const int index, resolver.candidate(place, candidate, "pins"));
      constraints.pins.push_back({fmt::format("pin {}={}", site, candidate), place, index});
    }
  }
  return {};
}

// A row that only assignments without the forbidden candidates keep: one constraint with one name,
// however many sites it is about.
template <typename Forbidden>
Row without(const Choices& choices, std::string name, const Forbidden& forbidden) {
  Row row;
  row.name = std::move(name);
  row.upper = 0;
  for (const SiteChoices& site : choices) {
    auto& counts = row.coefficient.emplace_back();
    for (const Choice& choice : site.choices) {
      counts.push_back(forbidden(site, choice.candidate) ? 1 : 0);
    }
  }
  return row;
}

Status add_exclusions(const Resolver& resolver, const Choices& choices,
                      const std::vector<SiteRule>& rules, Constraints& constraints) {
  for (const auto& [site, candidate] : rules) {
    std::string name = fmt::format("exclude {}={}", site, candidate);
    BA_ASSIGN_OR_RETURN(const std::vector<int> places, resolver.sites(site, "exclude"));
    for (const int place : places) {
      BA_ASSIGN_OR_RETURN(const int index, resolver.candidate(place, candidate, "exclude"));
      if (site != "*") constraints.exclusions.push_back({name, place, index});
    }
    if (site != "*") continue;
    BA_ASSIGN_OR_RETURN(const Candidate excluded, parse_candidate(candidate));
    constraints.rows.push_back(
        without(choices, std::move(name),
                [&](const SiteChoices&, const Candidate& c) { return c == excluded; }));
  }
  return {};
}

Row k_not_below_v(const SearchSpec& spec, const Choices& choices) {
  const auto below = [&](const SiteChoices& site, const Candidate& candidate) {
    const CacheShape k_shape = cache_shape(spec.sites[site.site]);
    CacheShape v_shape = k_shape;
    v_shape.side = Side::kV;
    return bits_per_element(candidate.k, k_shape) < bits_per_element(candidate.v, v_shape);
  };
  return without(choices, "k_not_below_v", below);
}

Status add_groups(const Resolver& resolver, const std::vector<std::vector<std::string>>& groups,
                  Constraints& constraints) {
  for (const auto& names : groups) {
    Group group{fmt::format("same {}", fmt::join(names, ",")), {}};
    for (const std::string& name : names) {
      BA_ASSIGN_OR_RETURN(const std::vector<int> places, resolver.sites(name, "same"));
      group.sites.insert(group.sites.end(), places.begin(), places.end());
    }
    std::sort(group.sites.begin(), group.sites.end());
    group.sites.erase(std::unique(group.sites.begin(), group.sites.end()), group.sites.end());
    if (group.sites.size() > 1) constraints.groups.push_back(std::move(group));
  }
  return {};
}

void add_max_formats(const Choices& choices, int limit, Constraints& constraints) {
  DistinctLimit distinct{fmt::format("max_formats {}", limit), limit, {}};
  for (const SiteChoices& site : choices) {
    auto& labels = distinct.labels.emplace_back();
    for (const Choice& choice : site.choices) labels.push_back(candidate_name(choice.candidate));
  }
  constraints.distinct = std::move(distinct);
}

Status add_deployed(const Resolver& resolver, size_t sites, const Deployed& deployed,
                    Constraints& constraints) {
  ChangeLimit changes{fmt::format("max_changes {}", deployed.max_changes), deployed.max_changes,
                      std::vector<int>(sites, -1)};
  for (const auto& [site, candidate] : deployed.candidates) {
    BA_ASSIGN_OR_RETURN(const std::vector<int> places, resolver.sites(site, "deployed"));
    for (const int place : places) {
      BA_ASSIGN_OR_RETURN(changes.deployed[static_cast<size_t>(place)],
                          resolver.candidate(place, candidate, "deployed"));
    }
  }
  constraints.changes = std::move(changes);
  return {};
}

Result<Row> cost_row(const Choices& choices, const CostLimit& limit) {
  std::map<Candidate, double> costs;
  for (const auto& [name, cost] : limit.cost) {
    BA_ASSIGN_OR_RETURN(const Candidate candidate, parse_candidate(name));
    costs[candidate] = cost;
  }
  Row row;
  row.name = limit.name;
  if (limit.upper) row.upper = *limit.upper;
  if (limit.lower) row.lower = *limit.lower;
  std::set<Candidate> used;
  for (const SiteChoices& site : choices) {
    auto& coefficients = row.coefficient.emplace_back();
    for (const Choice& choice : site.choices) {
      const auto cost = costs.find(choice.candidate);
      coefficients.push_back(cost == costs.end() ? 0 : cost->second);
      used.insert(choice.candidate);
    }
  }
  for (const auto& [candidate, cost] : costs) {
    if (used.contains(candidate)) continue;
    return invalid_argument(fmt::format("cost '{}': '{}' was not scored in this search", limit.name,
                                        candidate_name(candidate)),
                            "costs");
  }
  return row;
}

// Of the candidates by site. REQUIRES: none is empty.
std::vector<Candidate> smallest_candidates(const SearchSpec& spec,
                                           const std::vector<std::vector<Candidate>>& candidates) {
  std::vector<Candidate> smallest;
  for (size_t site = 0; site < candidates.size(); ++site) {
    smallest.push_back(*std::min_element(candidates[site].begin(), candidates[site].end(),
                                         [&](const Candidate& a, const Candidate& b) {
                                           return candidate_bits(spec.sites[site], a) <
                                                  candidate_bits(spec.sites[site], b);
                                         }));
  }
  return smallest;
}

Status check_fits(const SearchSpec& spec, const std::vector<Candidate>& smallest,
                  const KvBudget& budget) {
  const KvLoad& load = budget.load;
  const int64_t least = assignment_kv_bytes(spec, smallest, load);
  if (least <= budget.bytes) return {};
  return infeasible(
      fmt::format("{} sequences of {} tokens need {} of KV cache on a rank with the smallest "
                  "candidates; the budget is {}",
                  load.sequences, load.context, bytes_text(least), bytes_text(budget.bytes)),
      "memory",
      fmt::format("at most {} sequences of {} tokens fit, or {} sequences of {} tokens",
                  most_sequences(spec, smallest, budget), load.context, load.sequences,
                  longest_context(spec, smallest, budget)));
}

Result<Row> memory_row(const SearchSpec& spec, const Choices& choices, const KvBudget& asked) {
  BA_ASSIGN_OR_RETURN(const KvBudget budget, cache_budget(asked, spec));
  if (choices.size() != spec.sites.size()) {
    return unavailable("some sites have no score yet, so their memory is not decided", "memory");
  }
  std::vector<std::vector<Candidate>> candidates;
  Row row;
  row.name = fmt::format("memory {}", bytes_text(budget.bytes));
  row.upper = static_cast<double>(budget.bytes - fixed_kv_bytes(spec, budget.load));
  for (const SiteChoices& site : choices) {
    auto& bytes = row.coefficient.emplace_back();
    auto& there = candidates.emplace_back();
    for (const Choice& choice : site.choices) {
      there.push_back(choice.candidate);
      bytes.push_back(static_cast<double>(
          kv_bytes(spec.model, spec.sites[site.site], choice.candidate, budget.load)));
    }
  }
  BA_RETURN_IF_ERROR(check_fits(spec, smallest_candidates(spec, candidates), budget));
  return row;
}

Json cost_json(const CostLimit& limit) {
  Json json = {{"name", limit.name}, {"cost", limit.cost}};
  if (limit.upper) json["upper"] = *limit.upper;
  if (limit.lower) json["lower"] = *limit.lower;
  return json;
}

}  // namespace

Result<Limits> limits_from_json(const Json& json, const std::string& where) {
  BA_RETURN_IF_ERROR(check_names(
      json, {"memory", "exclude", "same", "k_not_below_v", "max_formats", "deployed", "costs"},
      where));
  Limits limits;
  if (json.contains("memory")) {
    BA_ASSIGN_OR_RETURN(limits.memory, kv_budget_from_json(json["memory"], where + ".memory"));
  }
  BA_ASSIGN_OR_RETURN(const auto exclude, list_field(json, "exclude", where));
  for (const Json& rule : exclude) {
    if (!rule.is_array() || rule.size() != 2 || !rule[0].is_string() || !rule[1].is_string()) {
      return invalid_argument(where + ".exclude is not a list of [site, candidate]",
                              where + ".exclude");
    }
    limits.exclude.push_back({rule[0], rule[1]});
  }
  BA_ASSIGN_OR_RETURN(
      limits.same, (json_field_or<std::vector<std::vector<std::string>>>(json, "same", where, {})));
  BA_ASSIGN_OR_RETURN(limits.k_not_below_v,
                      json_field_or<bool>(json, "k_not_below_v", where, false));
  BA_ASSIGN_OR_RETURN(limits.max_formats, optional_field<int>(json, "max_formats", where));
  if (json.contains("deployed")) {
    BA_ASSIGN_OR_RETURN(limits.deployed, deployed_from_json(json["deployed"], where + ".deployed"));
  }
  BA_ASSIGN_OR_RETURN(const auto costs, list_field(json, "costs", where));
  for (size_t i = 0; i < costs.size(); ++i) {
    BA_ASSIGN_OR_RETURN(CostLimit cost,
                        cost_from_json(costs[i], fmt::format("{}.costs[{}]", where, i)));
    limits.costs.push_back(std::move(cost));
  }
  return limits;
}

Json to_json(const Limits& limits) {
  Json json = Json::object();
  if (limits.memory) json["memory"] = to_json(*limits.memory);
  for (const auto& [site, candidate] : limits.exclude) {
    json["exclude"].push_back(Json::array({site, candidate}));
  }
  if (!limits.same.empty()) json["same"] = limits.same;
  if (limits.k_not_below_v) json["k_not_below_v"] = true;
  if (limits.max_formats) json["max_formats"] = *limits.max_formats;
  if (limits.deployed) {
    json["deployed"] = {{"candidates", limits.deployed->candidates},
                        {"max_changes", limits.deployed->max_changes}};
  }
  for (const CostLimit& limit : limits.costs) json["costs"].push_back(cost_json(limit));
  return json;
}

Result<Constraints> make_constraints(const SearchSpec& spec, const Choices& choices,
                                     double effective_bits, const Pins& pins,
                                     const Limits& limits) {
  const Resolver resolver(spec, choices);
  Constraints constraints;
  if (effective_bits != 0) constraints.effective_bits = effective_bits;
  if (limits.memory) {
    BA_ASSIGN_OR_RETURN(Row row, memory_row(spec, choices, *limits.memory));
    constraints.rows.push_back(std::move(row));
  }
  for (const CostLimit& limit : limits.costs) {
    BA_ASSIGN_OR_RETURN(Row row, cost_row(choices, limit));
    constraints.rows.push_back(std::move(row));
  }
  BA_RETURN_IF_ERROR(add_pins(resolver, pins, constraints));
  BA_RETURN_IF_ERROR(add_exclusions(resolver, choices, limits.exclude, constraints));
  if (limits.k_not_below_v) constraints.rows.push_back(k_not_below_v(spec, choices));
  BA_RETURN_IF_ERROR(add_groups(resolver, limits.same, constraints));
  if (limits.max_formats) add_max_formats(choices, *limits.max_formats, constraints);
  if (limits.deployed) {
    BA_RETURN_IF_ERROR(add_deployed(resolver, choices.size(), *limits.deployed, constraints));
  }
  return constraints;
}

Status check_memory(const SearchSpec& spec, const KvBudget& asked) {
  BA_ASSIGN_OR_RETURN(const KvBudget budget, cache_budget(asked, spec));
  const std::vector<std::vector<Candidate>> candidates(spec.sites.size(), spec.candidates);
  return check_fits(spec, smallest_candidates(spec, candidates), budget);
}

Json memory_json(const SearchSpec& spec, const std::vector<Candidate>& chosen,
                 const KvBudget& asked) {
  // Whoever is here has solved within it.
  const KvBudget budget = cache_budget(asked, spec).value();
  Json json = to_json(budget);
  if (budget.gpu_bytes > 0) {
    json["weight_bytes"] = weight_bytes(spec.model, budget.load.tensor_parallel);
  }
  json["kv_bytes"] = assignment_kv_bytes(spec, chosen, budget.load);
  json["most_sequences"] = most_sequences(spec, chosen, budget);
  json["longest_context"] = longest_context(spec, chosen, budget);
  return json;
}

}  // namespace bitalloc
