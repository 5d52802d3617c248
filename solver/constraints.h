// What an assignment must obey beside one candidate a site: budgets of any number and kind, and who
// may take what. Every constraint has a name, by which an infeasible set is reported.
//
// Plain data; safe to share between threads while nobody writes.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "solver/problem.h"

namespace bitalloc {

// An empty `name` stands for the place: "rows[2]", "pins[0]", "max_distinct".

// lower ≤ Σ coefficient[site][candidate of the site] ≤ upper: bytes of a cache or of one rank of
// it, nanoseconds a token, … Any unit and sign.
struct Row {
  std::string name;
  std::vector<std::vector<double>> coefficient;  // [sites][candidates of the site], finite
  double lower = -std::numeric_limits<double>::infinity();
  double upper = std::numeric_limits<double>::infinity();
};

struct Pin {  // `site` takes `candidate`
  std::string name;
  int site = 0;
  int candidate = 0;
};

struct Exclusion {  // `site` does not take `candidate`
  std::string name;
  int site = 0;
  int candidate = 0;
};

struct Group {  // all take the same candidate index
  std::string name;
  std::vector<int> sites;
};

struct PairRule {  // the candidates of two sites are one of the `allowed` (first's, second's)
  std::string name;
  int first = 0;
  int second = 0;
  std::vector<std::pair<int, int>> allowed;
};

struct DistinctLimit {  // at most `limit` different labels are taken over all sites
  std::string name;
  int limit = 1;
  std::vector<std::vector<std::string>>
      labels;  // [sites][candidates]: what candidates are at heart
};

struct ChangeLimit {  // at most `limit` sites take another candidate than the deployed one
  std::string name;
  int limit = 0;
  std::vector<int> deployed;  // [sites] candidate; -1: nothing is deployed there, nothing changes
};

struct Constraints {
  std::optional<double> effective_bits;  // "budget": Σ width·bits ≤ effective_bits · Σ width
  std::vector<Row> rows;
  std::vector<Pin> pins;
  std::vector<Exclusion> exclusions;
  std::vector<Group> groups;
  std::vector<PairRule> pairs;
  std::optional<DistinctLimit> distinct;
  std::optional<ChangeLimit> changes;
};

// Done when the constraints fit the (valid) problem; whether they can be met is not looked at.
// kInvalidArgument; `field` names the entry ("rows[0].coefficient[2][1]", "pins[1].site").
Status validate(const Problem& problem, const Constraints& constraints);

// Names in one order for all of this folder: budget, rows, pins, exclusions, groups, pairs,
// distinct, changes.
std::vector<std::string> constraint_names(const Constraints& constraints);

// The constraints whose place in constraint_names() is set in `kept`, under their names there.
Constraints subset(const Constraints& constraints, const std::vector<bool>& kept);

// A bound counts as met up to this much: 1e-10 of the bound (a decimal of an attainable value is
// attained) and what rounding of the coefficients can make, 1e-15·Σ over sites of the largest
// |coefficient|.
double row_tolerance(const Row& row, double bound);

// Names of the constraints that `choice` ([sites] candidate) breaks, summed in long double:
// independent of every solver here.
std::vector<std::string> violations(const Problem& problem, const Constraints& constraints,
                                    const std::vector<int>& choice);

}  // namespace bitalloc
