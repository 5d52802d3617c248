// More bits should not score worse. Where measured scores say that they do: which pairs, by how
// much, and the nearest scores that keep the rule.
//
// Bits are the average over what a site stores: of two candidates of several tensors (a K and a V
// format) the one of more bits may honestly be worse. So nothing is smoothed unless asked for.
//
// Pure functions; thread-safe.
#pragma once

#include <vector>

#include "solver/problem.h"
#include "solver/samples.h"

namespace bitalloc {

struct Violation {
  std::size_t site = 0;
  int more_bits = 0;          // the candidate of more bits, which scores worse than …
  int fewer_bits = 0;         // … this one
  double excess = 0;          // nats a token, > 0
  double standard_error = 0;  // of `excess`, paired by sequence
};

// Every pair of candidates of one site that breaks the rule by more than `errors` standard errors
// of the paired difference. Empty for fewer than two sequences: then nothing is known of the error.
std::vector<Violation> violations(const Problem& problem, const Samples& samples, double errors);

// The scores that never grow with the bits and are nearest to `score`, Σ weight·(fit − score)²
// (isotonic regression by pool-adjacent-violators: Barlow et al., Statistical Inference under Order
// Restrictions, 1972). Candidates of equal bits do not bind each other (the primary approach to
// ties: Kruskal 1964). All [candidate]; weights > 0.
std::vector<double> falling_fit(const std::vector<double>& bits, const std::vector<double>& score,
                                const std::vector<double>& weight);

// What a score weighs in its fit: one over its squared standard error, at most 10^6 times the least
// weight of its site; 1 where there is no error. [site][candidate]
std::vector<std::vector<double>> fit_weights(const Samples& samples);

// `problem` with every site's scores replaced by their fit.
Problem smoothed(Problem problem, const std::vector<std::vector<double>>& weights);

}  // namespace bitalloc
