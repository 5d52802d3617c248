// What a problem's scores are made of: the sums of every sequence. The whole text of errors,
// resamples and smoothing rests on these; nothing of formats or tables here.
//
// Plain data and pure functions; thread-safe.
#pragma once

#include <vector>

#include "common/ratio.h"
#include "solver/problem.h"

namespace bitalloc {

// Nats summed over tokens, of the same sequences for every site and candidate: a score of the
// problem is the sum of its row, or that divided by the sum of `tokens`.
struct Samples {
  std::vector<std::vector<std::vector<double>>> sums;  // [site][candidate][sequence]
  std::vector<double> tokens;                          // [sequence], scored tokens, ≥ 0
};

// Nats a token of a whole assignment, choice: [site]. Its error contains the covariance of the
// sites: the sums of one sequence are added up over the sites before they are compared.
Ratio objective_of(const Samples& samples, const std::vector<int>& choice);

// Nats a token that candidate `a` of `site` costs more than `b`, paired by sequence.
Ratio difference_of(const Samples& samples, std::size_t site, int a, int b);

// Nats a token that assignment `a` costs more than `b`, paired by sequence.
Ratio difference_of(const Samples& samples, const std::vector<int>& a, const std::vector<int>& b);

}  // namespace bitalloc
