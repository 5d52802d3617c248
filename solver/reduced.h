// A constrained problem made smaller: pins and exclusions take options away, groups and pairs merge
// sites, every bound is a row Σ weight ≤ capacity in whole numbers, what cannot fit is dropped.
//
// Plain data: safe to share between threads once made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "solver/constraints.h"
#include "solver/integer_problem.h"

namespace bitalloc {

// What a (merged) site may take: one candidate for each of its members.
struct Option {
  std::vector<int> candidate;        // [members]
  double score = 0;                  // nats above the site's lowest
  std::vector<std::int64_t> weight;  // [capacities], above the site's lightest
  std::vector<int> labels;           // what a DistinctLimit counts: indices, growing
};

struct ReducedSite {
  std::vector<int> members;  // sites of the problem, growing
  std::vector<Option> options;
};

// A PairRule over more joint options than merging allows: [option of first][option of second].
struct Clause {
  int first = 0;
  int second = 0;
  std::vector<std::vector<bool>> allowed;
};

struct Reduced {
  std::vector<ReducedSite> sites;  // by their first member
  std::vector<std::int64_t> capacity;
  std::vector<Clause> clauses;
  int max_labels = 0;  // at most so many labels; 0: no limit
  int num_labels = 0;
  long double score_offset = 0;  // add it to a sum of Option::score
  double score_noise = 0;        // what rounding of the caller's scores can move a sum by
};

// Nothing when some site has no option left, or some row does not even hold the lightest ones.
// `problem` and `constraints` are valid.
std::optional<Reduced> reduce(const Problem& problem, const Constraints& constraints);

// Without the options that take a label which is not allowed ([num_labels]); nothing as above.
// Labels are not limited any more.
std::optional<Reduced> with_labels(const Reduced& reduced, const std::vector<bool>& allowed);

// One row of a problem alone (0 when it has none), for single_row.h; an item's candidate is the
// index of an option. Clauses are left out.
IntegerProblem to_integers(const Reduced& reduced, std::size_t row);
// The row's capacity in units of that problem.
std::int64_t capacity_of(const Reduced& reduced, std::size_t row, const IntegerProblem& integers);

// picked: [sites] index of an option → [sites of the problem] candidate.
std::vector<int> to_choice(const Reduced& reduced, const std::vector<int>& picked);

}  // namespace bitalloc
