// How sure an assignment is: what would have been chosen on other sequences like those measured.
//
// Bootstrap (Efron 1979): a resample draws as many sequences as there are, with replacement, the
// same ones for every site and candidate, and is solved again exactly within the same constraints,
// with what the dynamic program alone can prove. Draws come from SplitMix64 (common/random.h),
// sequence after sequence, so a seed gives the same resamples everywhere. Sequences without a token
// are not drawn.
//
// Thread-safe. Takes about `resamples` times the time of one solve().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/status.h"
#include "solver/constraints.h"
#include "solver/monotone.h"
#include "solver/problem.h"
#include "solver/samples.h"

namespace bitalloc {

struct ConfidenceOptions {
  int resamples = 200;  // 1 … 10,000
  std::uint64_t seed = 1;
  double threshold = 0.95;       // a site is undecided below this stability; 0.5 < threshold < 1
  double interval_level = 0.95;  // of the objective's interval; within (0, 1)
  double violation_errors = 2;   // standard errors beyond which worse scores are a violation; ≥ 0
  bool smooth = false;           // the choice was made on smoothed scores; so are the resamples'
  double time_limit_seconds = 20;  // then what is done by then counts; > 0
};

// A site whose choice the data does not decide.
struct Undecided {
  std::size_t site = 0;
  int runner_up = 0;           // the other candidate that most resamples took (of equals the first)
  double runner_up_share = 0;  // of the resamples
  // What the best assignment with the runner-up here costs more than the one in question: nats a
  // token, paired by sequence.
  Ratio difference;
  // Sequences like these, on top of those there are, after which the choice would be expected to
  // keep to `threshold`: with n sequences, difference d ± e and z the threshold's normal quantile,
  //   d ≥ z·e·√(n/(n + more))   ⇔   more = n·(z·e/d)² − n,   at least 1.
  // The error of a mean falls with the root of the sequences; d is taken for the truth, so one
  // site's number is an order of magnitude: over many sites half of them reach 0.955 for a
  // threshold of 0.95, a quarter stay below 0.8 to 0.85 (confidence_bench --calibrate). d is of
  // whole assignments and not s + λ·width·bits of the two candidates: that estimates as well, but
  // is 0 at the very site where the budget binds.
  // Nothing where d ≤ 0 or `more` is beyond 10^9: no amount of text tells these two apart.
  std::optional<std::int64_t> more_sequences;
};

struct Confidence {
  int resamples = 0;                 // solved: fewer than asked when time ran out
  int unproven = 0;                  // of them: solved, but not to a proof
  std::vector<double> stability;     // [site] share of resamples that keep the choice
  std::vector<Undecided> undecided;  // by site
  Ratio objective;                   // of the assignment, nats a token
  // The middle `interval_level` of the assignment's objective over the resamples (percentile
  // method, linear between order statistics).
  std::array<double, 2> interval{};
  // How much worse than it looks the assignment may be expected to do on other text because it was
  // picked on this one: mean over resamples of (all data − resample) for the resample's own choice
  // (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 17.6). Nats a token.
  double selection_bias = 0;
  std::vector<Violation> violations;
};

// Of `choice`, the best assignment of `problem` within `constraints`; `samples` are of the same
// sites and candidates, and the problem's scores are sums over them. Errors: kInvalidArgument for
// an option (naming it) or fewer than two sequences with tokens (field "sequences"); those of
// solve().
Result<Confidence> confidence(const Problem& problem, const Samples& samples,
                              const Constraints& constraints, const std::vector<int>& choice,
                              const ConfidenceOptions& options = {});

// Errors as above.
Status validate(const ConfidenceOptions& options);

}  // namespace bitalloc
