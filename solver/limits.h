// What people ask of an assignment beside a number of bits, in their own terms, and the solver's
// constraints out of it.
//
// Sites are named as in pins (choices.h); "*" stands for every site. Pure functions; thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/kv_budget.h"
#include "solver/choices.h"
#include "solver/constraints.h"

namespace bitalloc {

// A linear cost of candidates, the same at every site: say, microseconds a token and layer.
struct CostLimit {
  std::string name;
  std::map<std::string, double> cost;  // candidate → cost; those that are not named cost 0
  std::optional<double> upper;         // of the sum over sites
  std::optional<double> lower;
};

struct SiteRule {  // `site` does not take `candidate`
  std::string site;
  std::string candidate;
};

struct Deployed {  // at most `max_changes` sites take another candidate than they have there now
  std::map<std::string, std::string> candidates;  // site → candidate; sites left out may change
  int max_changes = 0;
};

struct Limits {
  std::optional<KvBudget> memory;
  std::vector<SiteRule> exclude;
  std::vector<std::vector<std::string>> same;  // sites that take one and the same candidate
  bool k_not_below_v = false;                  // kernels that want at least as many bits for K
  std::optional<int> max_formats;              // different candidates at most
  std::optional<Deployed> deployed;
  std::vector<CostLimit> costs;

  bool empty() const {
    return !memory && exclude.empty() && same.empty() && !k_not_below_v && !max_formats &&
           !deployed && costs.empty();
  }
};

// {"memory": {…kv_budget.h…}, "exclude": [[site, candidate]…], "same": [[site…]…],
//  "k_not_below_v": true, "max_formats": 2, "deployed": {"candidates": {site: candidate},
//  "max_changes": 3}, "costs": [{"name", "cost": {candidate: number}, "upper", "lower"}…]}, all
// optional. Errors: kInvalidArgument naming the field, an unknown one included.
Result<Limits> limits_from_json(const Json& json, const std::string& where);
Json to_json(const Limits& limits);

// The constraints of `choices`; `effective_bits` 0: no such budget. Pins become constraints, too,
// so an infeasible set names them. Errors: kInvalidArgument naming the limit, for a site or
// candidate that is not there and for numbers out of range; kInfeasible (field "memory") with what
// the smallest candidates would need, when even they do not fit.
Result<Constraints> make_constraints(const SearchSpec& spec,
                                     const std::vector<SiteChoices>& choices, double effective_bits,
                                     const Pins& pins, const Limits& limits);

// Whether every site's smallest candidate fits. Errors: those of validate(budget, spec), and
// kInfeasible as above.
Status check_memory(const SearchSpec& spec, const KvBudget& budget);

// What the chosen candidates take of the budget's memory: {"kv_bytes" (of one rank),
// "memory_bytes", "context", "sequences", "tp", "block_tokens", "most_sequences",
// "longest_context"}.
Json memory_json(const SearchSpec& spec, const std::vector<Candidate>& chosen,
                 const KvBudget& budget);

}  // namespace bitalloc
