#include "solver/confidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <chrono>
#include <cmath>

#include "common/random.h"
#include "solver/solve.h"

namespace bitalloc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxResamples = 10'000;
constexpr double kMostSequences = 1e9;
constexpr double kSolveSeconds = 1;  // for one resample

// What all resamples share.
struct Question {
  const Problem& problem;
  const Samples& samples;
  double budget;
  const std::vector<int>& choice;
  const ConfidenceOptions& options;
  std::vector<std::size_t> drawn_from;       // sequences with tokens
  std::vector<std::vector<double>> weights;  // of the fits, when smoothing
  Clock::time_point deadline;
};

struct Tally {
  std::vector<std::vector<int>> taken;  // [site][candidate] resamples
  std::vector<double> objectives;       // of the choice, a resample each; nats a token
  double bias_sum = 0;
  int unproven = 0;
};

// How often each sequence is in the resample, [sequence].
std::vector<double> draw(const Question& question, Random* random) {
  std::vector<double> times(question.samples.tokens.size(), 0.0);
  const auto count = static_cast<std::int64_t>(question.drawn_from.size());
  for (std::int64_t k = 0; k < count; ++k) {
    times[question.drawn_from[static_cast<std::size_t>(random->below(count))]] += 1;
  }
  return times;
}

double weighted_sum(const std::vector<double>& values, const std::vector<double>& times) {
  double sum = 0;
  for (std::size_t q = 0; q < times.size(); ++q) {
    sum += times[q] * values[q];
  }
  return sum;
}

Problem resampled(const Question& question, const std::vector<double>& times) {
  Problem problem = question.problem;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    for (std::size_t j = 0; j < problem.score[i].size(); ++j) {
      problem.score[i][j] = weighted_sum(question.samples.sums[i][j], times);
    }
  }
  return problem;
}

Result<Solution> solve_again(const Question& question, const Problem& problem) {
  const double left = std::chrono::duration<double>(question.deadline - Clock::now()).count();
  const SolveOptions options{.time_limit_seconds = std::clamp(left, 0.0, kSolveSeconds),
                             .cbc_check_seconds = 0};
  if (!question.options.smooth) {
    return solve(problem, question.budget, options);
  }
  return solve(smoothed(problem, question.weights), question.budget, options);
}

Status add_resample(const Question& question, Random* random, Tally* tally) {
  const std::vector<double> times = draw(question, random);
  const Problem problem = resampled(question, times);
  BA_ASSIGN_OR_RETURN(const Solution solution, solve_again(question, problem));
  const double tokens = weighted_sum(question.samples.tokens, times);
  tally->objectives.push_back(objective_of(problem, question.choice) / tokens);
  tally->bias_sum += objective_of(question.samples, solution.choice).value -
                     objective_of(problem, solution.choice) / tokens;
  tally->unproven += solution.proven_optimal ? 0 : 1;
  for (std::size_t i = 0; i < solution.choice.size(); ++i) {
    ++tally->taken[i][solution.choice[i]];
  }
  return {};
}

Result<Tally> resample(const Question& question) {
  Tally tally;
  for (const auto& bits : question.problem.bits) {
    tally.taken.emplace_back(bits.size(), 0);
  }
  Random random(question.options.seed);
  for (int k = 0; k < question.options.resamples; ++k) {
    if (k > 0 && Clock::now() >= question.deadline) {
      break;
    }
    BA_RETURN_IF_ERROR(add_resample(question, &random, &tally));
  }
  return tally;
}

std::optional<std::int64_t> more_sequences(const Question& question, const Ratio& difference) {
  if (!difference.standard_error || !(difference.value > 0)) {
    return std::nullopt;
  }
  const double z = boost::math::quantile(boost::math::normal(), question.options.threshold);
  const double n = static_cast<double>(question.drawn_from.size());
  const double root = z * *difference.standard_error / difference.value;
  const double more = n * root * root - n;
  if (!(more <= kMostSequences)) {
    return std::nullopt;
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(more)));
}

// The best assignment whose candidate at `site` is `candidate`.
Result<std::vector<int>> best_with(const Question& question, std::size_t site, int candidate) {
  Problem problem = question.problem;
  problem.bits[site] = {problem.bits[site][candidate]};
  problem.score[site] = {problem.score[site][candidate]};
  // The scores are what the choice was made on already: smoothed, where that was asked.
  const SolveOptions options{.time_limit_seconds = kSolveSeconds, .cbc_check_seconds = 0};
  BA_ASSIGN_OR_RETURN(const Solution solution, solve(problem, question.budget, options));
  std::vector<int> choice = solution.choice;
  choice[site] = candidate;
  return choice;
}

Result<Undecided> undecided_site(const Question& question, std::size_t site,
                                 const std::vector<int>& taken, double resamples) {
  int runner_up = -1;
  for (int j = 0; j < static_cast<int>(taken.size()); ++j) {
    if (j != question.choice[site] && (runner_up < 0 || taken[j] > taken[runner_up])) {
      runner_up = j;
    }
  }
  Undecided found{site, runner_up, taken[runner_up] / resamples, {}, {}};
  BA_ASSIGN_OR_RETURN(const std::vector<int> rival, best_with(question, site, runner_up));
  found.difference = difference_of(question.samples, rival, question.choice);
  found.more_sequences = more_sequences(question, found.difference);
  return found;
}

// Linear between order statistics, as numpy.quantile does by default.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::array<double, 2> middle(std::vector<double> values, double level) {
  std::sort(values.begin(), values.end());
  return {quantile(values, (1 - level) / 2), quantile(values, (1 + level) / 2)};
}

Result<Confidence> summary(const Question& question, const Tally& tally) {
  Confidence result;
  result.resamples = static_cast<int>(tally.objectives.size());
  result.unproven = tally.unproven;
  const double count = result.resamples;
  for (std::size_t i = 0; i < question.choice.size(); ++i) {
    result.stability.push_back(tally.taken[i][question.choice[i]] / count);
    if (result.stability.back() < question.options.threshold) {
      BA_ASSIGN_OR_RETURN(Undecided site, undecided_site(question, i, tally.taken[i], count));
      result.undecided.push_back(std::move(site));
    }
  }
  result.objective = objective_of(question.samples, question.choice);
  result.interval = middle(tally.objectives, question.options.interval_level);
  result.selection_bias = tally.bias_sum / count;
  result.violations =
      violations(question.problem, question.samples, question.options.violation_errors);
  return result;
}

Status refuse(const char* option, const char* rule) {
  return invalid_argument(fmt::format("{} must be {}", option, rule), option);
}

}  // namespace

Status validate(const ConfidenceOptions& options) {
  if (options.resamples < 1 || options.resamples > kMaxResamples) {
    return refuse("resamples", "1 to 10000");
  }
  if (!(options.threshold > 0.5 && options.threshold < 1)) {
    return refuse("threshold", "above 0.5 and below 1");
  }
  if (!(options.interval_level > 0 && options.interval_level < 1)) {
    return refuse("interval_level", "above 0 and below 1");
  }
  if (!(options.violation_errors >= 0)) {
    return refuse("violation_errors", "0 or more");
  }
  if (!(options.time_limit_seconds > 0 && options.time_limit_seconds <= 1e6)) {
    return refuse("time_limit_seconds", "above 0, and at most 10^6");
  }
  return {};
}

Result<Confidence> confidence(const Problem& problem, const Samples& samples, double effective_bits,
                              const std::vector<int>& choice, const ConfidenceOptions& options) {
  BA_RETURN_IF_ERROR(validate(options));
  const auto limit = std::chrono::duration<double>(options.time_limit_seconds);
  Question question{problem,
                    samples,
                    effective_bits,
                    choice,
                    options,
                    {},
                    {},
                    Clock::now() + std::chrono::duration_cast<Clock::duration>(limit)};
  for (std::size_t q = 0; q < samples.tokens.size(); ++q) {
    if (samples.tokens[q] > 0) {
      question.drawn_from.push_back(q);
    }
  }
  if (question.drawn_from.size() < 2) {
    return invalid_argument("one sequence says nothing of what others would: no errors",
                            "sequences", "score more sequences");
  }
  if (options.smooth) {
    question.weights = fit_weights(samples);
  }
  BA_ASSIGN_OR_RETURN(const Tally tally, resample(question));
  return summary(question, tally);
}

}  // namespace bitalloc
