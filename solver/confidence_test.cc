// Errors, resamples and smoothing against numpy and scipy: tests/oracle/make_confidence.py, which
// solves every resample by trying all assignments.
#include "solver/confidence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "common/json.h"
#include "solver/frontier.h"
#include "solver/solve.h"

namespace bitalloc {
namespace {

Json oracle() {
  std::ifstream file(std::string(BITALLOC_SOURCE_DIR) + "/tests/oracle/confidence.json");
  return Json::parse(file);
}

Samples samples_of(const Json& json) {
  return {json.at("sums").get<std::vector<std::vector<std::vector<double>>>>(),
          json.at("tokens").get<std::vector<double>>()};
}

// Scores are the sums over all sequences.
Problem problem_of(const Json& json, const Samples& samples) {
  Problem problem;
  problem.bits = json.at("bits").get<std::vector<std::vector<double>>>();
  problem.width = json.at("width").get<std::vector<double>>();
  for (const auto& site : samples.sums) {
    auto& scores = problem.score.emplace_back();
    for (const auto& sums : site) {
      double total = 0;
      for (const double sum : sums) total += sum;
      scores.push_back(total);
    }
  }
  return problem;
}

ConfidenceOptions options_of(const Json& json) {
  ConfidenceOptions options;
  options.resamples = json.at("resamples");
  options.seed = json.at("seed");
  options.threshold = json.at("threshold");
  options.smooth = json.at("smooth");
  return options;
}

void expect_close(double got, const Json& expected) {
  const double value = expected.get<double>();
  EXPECT_NEAR(got, value, 1e-11 * std::fabs(value));
}

void expect_undecided(const Undecided& got, const Json& expected) {
  EXPECT_EQ(got.site, expected.at("site"));
  EXPECT_EQ(got.runner_up, expected.at("runner_up"));
  EXPECT_DOUBLE_EQ(got.runner_up_share, expected.at("runner_up_share"));
  expect_close(got.difference.value, expected.at("difference"));
  expect_close(got.difference.standard_error.value(), expected.at("standard_error"));
  EXPECT_EQ(got.more_sequences ? Json(*got.more_sequences) : Json(), expected.at("more_sequences"));
}

void expect_violation(const Violation& got, const Json& expected) {
  EXPECT_EQ(got.site, expected.at("site"));
  EXPECT_EQ(got.more_bits, expected.at("more_bits"));
  EXPECT_EQ(got.fewer_bits, expected.at("fewer_bits"));
  expect_close(got.excess, expected.at("excess"));
  expect_close(got.standard_error, expected.at("standard_error"));
}

TEST(Confidence, AgreesWithEnumerationInPython) {
  const Json file = oracle();
  int undecided = 0;
  size_t broken = 0;
  for (const Json& json : file.at("cases")) {
    SCOPED_TRACE(json.at("name").get<std::string>());
    const Json& expected = json.at("expected");
    const Samples samples = samples_of(json);
    Problem problem = problem_of(json, samples);
    const ConfidenceOptions options = options_of(json);
    if (options.smooth) problem = smoothed(problem, fit_weights(samples));
    for (size_t i = 0; i < problem.num_sites(); ++i) {
      for (size_t j = 0; j < problem.score[i].size(); ++j) {
        expect_close(problem.score[i][j], expected.at("scores")[i][j]);
      }
    }
    const auto solution = solve(problem, json.at("budget"));
    ASSERT_TRUE(solution.ok());
    EXPECT_EQ(Json(solution->choice), expected.at("choice"));
    const auto got = confidence(problem, samples, json.at("budget"), solution->choice, options);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->resamples, options.resamples);
    EXPECT_EQ(got->unproven, 0);
    EXPECT_EQ(Json(got->stability), expected.at("stability"));
    expect_close(got->objective.value, expected.at("objective"));
    expect_close(got->objective.standard_error.value(), expected.at("standard_error"));
    expect_close(got->interval[0], expected.at("interval")[0]);
    expect_close(got->interval[1], expected.at("interval")[1]);
    EXPECT_NEAR(got->selection_bias, expected.at("selection_bias").get<double>(),
                1e-12 * got->objective.value);
    ASSERT_EQ(got->undecided.size(), expected.at("undecided").size());
    for (size_t k = 0; k < got->undecided.size(); ++k, ++undecided) {
      expect_undecided(got->undecided[k], expected.at("undecided")[k]);
    }
    ASSERT_EQ(got->violations.size(), expected.at("violations").size());
    for (size_t k = 0; k < got->violations.size(); ++k, ++broken) {
      expect_violation(got->violations[k], expected.at("violations")[k]);
    }
  }
  EXPECT_GT(undecided, 0);
  EXPECT_GT(broken, 0u);
}

// Two sites with one candidate each and three sequences of 1, 1 and 2 tokens, in nats: 1, 2, 5 and
// 3, 2, 3. Together 4, 4, 8: 4 nats a token in every one, so the sum has no error although its
// parts have: the covariance of the sites counts.
TEST(Confidence, TheErrorOfASumHasTheCovariance) {
  const Samples samples{{{{1, 2, 5}}, {{3, 2, 3}}}, {1, 1, 2}};
  const Ratio sum = objective_of(samples, {0, 0});
  EXPECT_DOUBLE_EQ(sum.value, 4);
  EXPECT_DOUBLE_EQ(*sum.standard_error, 0);
  // The first alone: 8/4 = 2; residuals 1 − 2, 2 − 2, 5 − 4: √(3/2 · 2)/4.
  EXPECT_DOUBLE_EQ(*ratio(samples.sums[0][0], samples.tokens).standard_error, std::sqrt(3.0) / 4);
}

// Site 0's two candidates are equal but for noise that cancels; no amount of text decides.
TEST(Confidence, WhatNoTextDecidesHasNoEnd) {
  Problem problem{{{4, 8}, {4, 8}}, {{2, 2}, {10, 1}}, {1, 1}};
  const Samples samples{{{{1, 1}, {0, 2}}, {{5, 5}, {0.5, 0.5}}}, {1, 1}};
  const auto got = confidence(problem, samples, 8, {1, 1}, {.resamples = 50});
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->undecided.size(), 1u);
  EXPECT_EQ(got->undecided[0].site, 0u);
  EXPECT_FALSE(got->undecided[0].more_sequences.has_value());
  EXPECT_EQ(got->stability[1], 1);
}

TEST(Confidence, SameSeedSameAnswer) {
  const Json json = oracle().at("cases")[1];
  const Samples samples = samples_of(json);
  const Problem problem = problem_of(json, samples);
  const auto choice = solve(problem, json.at("budget"))->choice;
  const auto stability = [&](std::uint64_t seed) {
    return confidence(problem, samples, json.at("budget"), choice, {.seed = seed})->stability;
  };
  EXPECT_EQ(stability(1), stability(1));
  EXPECT_NE(stability(1), stability(2));
}

TEST(Confidence, RefusesOneSequenceAndBadOptions) {
  const Problem problem{{{4, 8}}, {{2, 1}}, {1}};
  const Samples one{{{{2, 0}, {1, 0}}}, {5, 0}};  // the second sequence has no token
  EXPECT_EQ(confidence(problem, one, 8, {1}).error().field, "sequences");
  const Samples two{{{{1, 1}, {0.5, 0.5}}}, {5, 5}};
  const auto field = [&](const ConfidenceOptions& options) {
    return confidence(problem, two, 8, {1}, options).error().field;
  };
  EXPECT_EQ(field({.resamples = 0}), "resamples");
  EXPECT_EQ(field({.resamples = 10'001}), "resamples");
  EXPECT_EQ(field({.threshold = 1}), "threshold");
  EXPECT_EQ(field({.threshold = std::nan("")}), "threshold");
  EXPECT_EQ(field({.interval_level = 0}), "interval_level");
  EXPECT_EQ(field({.violation_errors = -1}), "violation_errors");
  EXPECT_EQ(field({.time_limit_seconds = 0}), "time_limit_seconds");
}

TEST(Confidence, TimeRunsOutBetweenResamples) {
  const Json json = oracle().at("cases")[0];
  const Samples samples = samples_of(json);
  const Problem problem = problem_of(json, samples);
  const auto choice = solve(problem, json.at("budget"))->choice;
  const auto got = confidence(problem, samples, json.at("budget"), choice,
                              {.resamples = 10'000, .time_limit_seconds = 1e-9});
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->resamples, 1);
}

// By hand: 4 < 6 are pooled to (1·4 + 3·6)/4 = 5.5; with the 5 before them (weight 1) that is
// (5 + 22)/5 = 5.4. The 1 stays.
TEST(Monotone, PoolsAdjacentViolatorsByWeight) {
  EXPECT_EQ(falling_fit({2, 3, 4, 8}, {5, 4, 6, 1}, {1, 1, 3, 1}),
            (std::vector<double>{5.4, 5.4, 5.4, 1}));
  EXPECT_EQ(falling_fit({8, 4, 2}, {1, 2, 3}, {1, 1, 1}), (std::vector<double>{1, 2, 3}));
}

// K8/V4 and K4/V8 have equal bits and very different scores: that is no violation, but the pair
// with fewer bits binds both.
TEST(Monotone, EqualBitsDoNotBindEachOther) {
  EXPECT_EQ(falling_fit({4, 6, 6, 8}, {10, 2, 7, 1}, {1, 1, 1, 1}),
            (std::vector<double>{10, 2, 7, 1}));
  EXPECT_EQ(falling_fit({4, 6, 6}, {5, 2, 7}, {1, 1, 1}), (std::vector<double>{6, 2, 6}));
}

TEST(Monotone, AViolationIsOneBeyondItsError) {
  // Excess of the candidate of 8 bits, sequence by sequence: 1 and 3, of 1 token each: 2 ± 1.
  const Problem problem{{{4, 8}}, {{4, 8}}, {1}};
  const Samples samples{{{{2, 2}, {3, 5}}}, {1, 1}};
  ASSERT_EQ(violations(problem, samples, 1.9).size(), 1u);
  const Violation found = violations(problem, samples, 1.9)[0];
  EXPECT_EQ(found.more_bits, 1);
  EXPECT_DOUBLE_EQ(found.excess, 2);
  EXPECT_DOUBLE_EQ(found.standard_error, 1);
  EXPECT_TRUE(violations(problem, samples, 2.1).empty());
  EXPECT_TRUE(violations(problem, {{{{4}, {8}}}, {2}}, 0).empty());  // one sequence: no error known
}

Frontier frontier_of(const std::vector<double>& bits, const std::vector<double>& objective) {
  Frontier frontier;
  for (size_t k = 0; k < bits.size(); ++k) frontier.points.push_back({bits[k], objective[k], {}});
  return frontier;
}

TEST(Knees, AreKneedlesOnASmoothCurve) {
  const Json json = oracle().at("knee");
  const Frontier frontier = frontier_of(json.at("bits"), json.at("objective"));
  EXPECT_EQ(Json(knees(frontier)), (Json{json.at("knee")}));
}

// ln(objective) by hand: falls 6 a bit to 4 bits, 1 a bit to 8, 0.1 a bit to 16; one point of a
// straight stretch between each, and an exact zero, which has no logarithm.
TEST(Knees, EveryCornerIsOne) {
  const auto at = [](double log) { return std::exp(log); };
  const Frontier frontier =
      frontier_of({2, 3, 4, 6, 8, 12, 16, 17},
                  {at(0), at(-6), at(-12), at(-14), at(-16), at(-16.4), at(-16.8), 0});
  EXPECT_EQ(knees(frontier), (std::vector<size_t>{2, 4}));
}

TEST(Knees, AStraightOrShortFrontierHasNone) {
  EXPECT_TRUE(knees(frontier_of({2, 3, 4, 5}, {8, 4, 2, 1})).empty());
  EXPECT_TRUE(knees(frontier_of({2, 3}, {8, 1})).empty());
  EXPECT_TRUE(knees(frontier_of({2}, {8})).empty());
  EXPECT_TRUE(knees(frontier_of({}, {})).empty());
  EXPECT_TRUE(knees(frontier_of({2, 3, 4}, {0, -1, -2})).empty());
}

}  // namespace
}  // namespace bitalloc
