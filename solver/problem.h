// The allocation problem: one candidate for every site, fewest nats within a budget of bits.
//
// Plain data, free of any model, format or store; safe to share between threads while nobody
// writes.
#pragma once

#include <cstddef>
#include <vector>

#include "common/status.h"

namespace bitalloc {

struct Problem {
  // Bits an element of site i costs under its candidate j: [sites][candidates of the site]. Finite,
  // ≥ 0.
  std::vector<std::vector<double>> bits;
  // What the candidate costs in quality, in nats, same shape as `bits`. Within ±1e200;
  // may be zero or negative.
  std::vector<std::vector<double>> score;
  // Elements of site i: its share of the budget, [sites]. Finite, > 0.
  std::vector<double> width;

  std::size_t num_sites() const { return width.size(); }
};

// Done when `problem` can be solved. Otherwise kInvalidArgument, whose message and `field` name the
// entry at fault ("score[3][1]").
Status validate(const Problem& problem);

// Σ width·bits / Σ width and Σ score of an assignment, choice: [sites]. Summed in long double.
double effective_bits_of(const Problem& problem, const std::vector<int>& choice);
double objective_of(const Problem& problem, const std::vector<int>& choice);

}  // namespace bitalloc
