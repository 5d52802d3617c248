// The problem in integers: what every exact method of this folder works on.
//
// Weights become whole numbers by writing bits and widths as fractions, taking the site's lightest
// candidate off, and dividing by the greatest common divisor: bits 4.5, 6.25 and 8 over equal
// widths are weights 0, 1 and 2. Scores become "nats above the site's lowest", so that every sum
// has terms of one sign and keeps its relative precision at any scale.
//
// Plain data: safe to share between threads once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solver/problem.h"
#include "solver/whole_numbers.h"

namespace bitalloc {

struct Item {
  int candidate = 0;
  std::int64_t weight = 0;  // units above the site's lightest candidate
  double score = 0;         // nats above the site's lowest score
};

struct IntegerProblem {
  std::vector<std::vector<Item>> all;  // [site][candidate], in the caller's order
  // Without the candidates that another one beats; by growing weight, falling score.
  std::vector<std::vector<Item>> efficient;
  std::int64_t max_weight = 0;   // Σ over sites of the heaviest efficient candidate
  long double score_offset = 0;  // Σ lowest scores: add it to a sum of Item::score
  double score_noise = 0;        // what rounding of the caller's scores can move a sum by
  long double unit = 0;          // bits × elements that one unit of weight stands for
  long double base = 0;          // bits × elements of all sites at their lightest
  long double total_width = 0;   // elements of all sites
  bool exact_weights = true;  // false: rounded to 2^-60 of the whole (bits are no short fractions)
};

// `problem` must be valid. Never fails: bits that are no fraction of a denominator up to 10^6 (to
// 1e-15 relative) are rounded, see exact_weights.
IntegerProblem to_integers(const Problem& problem);

// width·bits in whole numbers, [site·candidate] flat.
WholeWeights budget_weights(const Problem& problem);

// From `all` (weights in `unit`s, scores), everything that follows from it: weights above the
// lightest over their common divisor, `base`, `efficient`, `max_weight`. No site may be empty.
void finish(IntegerProblem* problem);

// A budget counts as met up to this relative excess, so that an attainable value that went through
// a decimal text (5.375, 5.326388888888889) is attained.
inline constexpr double kBudgetTolerance = 1e-10;

// Units that fit into `effective_bits` on top of the lightest assignment; negative: nothing fits.
std::int64_t capacity_of(const IntegerProblem& problem, double effective_bits);

// Sums of `score` closer than this are the same objective (see solve.h), for sums around `score`.
double tie_tolerance(const IntegerProblem& problem, double score);

}  // namespace bitalloc
