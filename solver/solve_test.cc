#include "solver/solve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "solver/integer_problem.h"
#include "solver/test_problems.h"

namespace bitalloc {
namespace {

using ::testing::HasSubstr;

// Objectives agree to the tolerance within which solve() calls them tied (NaN fails).
bool same_objective(const Problem& problem, double a, double b) {
  double magnitude = std::fabs(a) + std::fabs(b);
  for (const auto& row : problem.score) {
    magnitude += std::fabs(*std::min_element(row.begin(), row.end()));
  }
  return std::fabs(a - b) <= 4e-12 * magnitude;
}

void expect_matches_enumeration(const Problem& problem, double budget, const std::string& replay) {
  const test::Best best = test::enumerate(problem, budget);
  const auto solution = solve(problem, budget, {.cbc_check_seconds = 0.02});
  if (!best.feasible) {
    ASSERT_FALSE(solution.ok()) << replay;
    EXPECT_EQ(solution.error().code, ErrorCode::kInfeasible) << replay;
    return;
  }
  ASSERT_TRUE(solution.ok()) << replay << " " << solution.error().message;
  EXPECT_TRUE(solution->proven_optimal) << replay;
  EXPECT_EQ(solution->gap, 0) << replay;
  EXPECT_TRUE(same_objective(problem, solution->objective, best.objective))
      << replay << " " << solution->objective << " for " << best.objective;
  EXPECT_EQ(solution->choice, best.choice) << replay;
  EXPECT_LE(solution->effective_bits, budget * (1 + kBudgetTolerance)) << replay;
  EXPECT_LE(solution->lower_bound, solution->objective) << replay;
  EXPECT_NE(solution->cbc, CbcVerdict::kDisagreed) << replay;
}

struct Case {
  const char* name;
  double scale;
  bool small_integers;
};

class Enumeration : public ::testing::TestWithParam<Case> {};

TEST_P(Enumeration, EverySmallProblemIsSolvedAsByTryingAll) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    std::mt19937_64 random(seed);
    test::Shape shape;
    shape.sites = 1 + static_cast<int>(random() % 6);
    shape.candidates = 1 + static_cast<int>(random() % 4);
    shape.scale = GetParam().scale;
    shape.small_integers = GetParam().small_integers;
    shape.equal_widths = random() % 2 == 0;
    const Problem problem = test::random_problem(shape, &random);
    const double budget = test::random_budget(problem, &random);
    expect_matches_enumeration(problem, budget,
                               std::string(GetParam().name) + " seed " + std::to_string(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Scales, Enumeration,
                         ::testing::Values(Case{"unit", 1, false}, Case{"nano", 1e-9, false},
                                           Case{"pico", 1e-12, false}, Case{"mega", 1e6, false},
                                           Case{"tiny", 1e-250, false}, Case{"huge", 1e150, false},
                                           Case{"zero", 0, false}, Case{"ties", 1, true},
                                           Case{"nano_ties", 1e-9, true},
                                           Case{"decimal_ties", 0.1, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Solve, MatchesACapacityProgramOnLargerProblemsWithUnequalWidths) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    test::Shape shape{36, 4, seed % 2 == 0 ? 1e-6 : 1.0, seed % 3 == 0, false};
    const Problem problem = test::random_problem(shape, &random);
    const double budget = test::random_budget(problem, &random);
    const auto solution = solve(problem, budget, {.cbc_check_seconds = 0.02});
    ASSERT_TRUE(solution.ok()) << "seed " << seed << " " << solution.error().message;
    const double expected = test::capacity_program(problem, budget);
    EXPECT_TRUE(solution->proven_optimal) << "seed " << seed;
    EXPECT_TRUE(same_objective(problem, solution->objective, expected))
        << "seed " << seed << " " << solution->objective << " for " << expected;
    EXPECT_NE(solution->cbc, CbcVerdict::kDisagreed) << "seed " << seed;
  }
}

// Worked by hand: from 4.5 bits everywhere (0.4 + 0.9 + 0.1), 2 units of 1.75 bits may be spent;
// the second site gains 0.5 by one and 0.8 by two, the first 0.35 by one. Best: one each, 0.05 +
// 0.4 + 0.1.
TEST(Solve, HandWorkedExample) {
  const std::vector<double> bits = {4.5, 6.25, 8};
  const Problem problem{
      {bits, bits, bits}, {{0.4, 0.05, 0.04}, {0.9, 0.4, 0.1}, {0.1, 0.09, 0}}, {256, 256, 256}};
  const auto solution = solve(problem, (4.5 * 3 + 2 * 1.75) / 3);
  ASSERT_TRUE(solution.ok());
  EXPECT_EQ(solution->choice, (std::vector<int>{1, 1, 0}));
  EXPECT_DOUBLE_EQ(solution->objective, 0.55);
  EXPECT_DOUBLE_EQ(solution->effective_bits, 17.0 / 3);
  EXPECT_TRUE(solution->proven_optimal);
  EXPECT_DOUBLE_EQ(solution->lower_bound, 0.55);
}

// Published for a 36-layer model: 17 layers of 6.25 and 19 of 4.5 bits are 5.326 effective bits.
TEST(Solve, PublishedEffectiveBitsOf36Layers) {
  Problem problem;
  for (int i = 0; i < 36; ++i) {
    problem.bits.push_back({4.5, 6.25});
    problem.score.push_back({1.0 + i, 0.0});
    problem.width.push_back(2048);
  }
  const auto solution = solve(problem, 5.3264);
  ASSERT_TRUE(solution.ok());
  EXPECT_NEAR(solution->effective_bits, 5.326, 5e-4);
  EXPECT_EQ(std::count(solution->choice.begin(), solution->choice.end(), 1), 17);
  EXPECT_EQ(solution->choice[19], 1);  // the 17 most sensitive ones are the last 17
  EXPECT_EQ(solution->choice[18], 0);
}

TEST(Solve, ABudgetEqualToAnAttainableValueIsAttained) {
  const Problem half{{{4.5, 6.25}, {4.5, 6.25}}, {{1, 0}, {1, 0}}, {3, 3}};
  EXPECT_EQ(solve(half, 5.375)->effective_bits, 5.375);
  // 5.326388888888889 is the decimal of 191.75/36, which no double is.
  Problem layers;
  for (int i = 0; i < 36; ++i) {
    layers.bits.push_back({4.5, 6.25});
    layers.score.push_back({1, 0});
    layers.width.push_back(1024);
  }
  EXPECT_DOUBLE_EQ(solve(layers, 5.326388888888889)->effective_bits, 191.75 / 36);
  EXPECT_DOUBLE_EQ(solve(layers, 5.32638)->effective_bits, (16 * 6.25 + 20 * 4.5) / 36);
}

TEST(Solve, EveryScaleOfScoresGivesTheSameChoice) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = test::random_problem({36, 4, 1, seed % 2 == 0, false}, &random);
    const double budget = test::random_budget(problem, &random);
    const auto expected = solve(problem, budget)->choice;
    for (const double scale : {1e-12, 1e-6, 0.1, 1e6}) {
      Problem scaled = problem;
      for (auto& row : scaled.score) {
        for (double& score : row) {
          score *= scale;
        }
      }
      EXPECT_EQ(solve(scaled, budget)->choice, expected) << "seed " << seed << " scale " << scale;
    }
  }
}

TEST(Solve, TiesAreBrokenByFewestBitsThenByOrderEveryTime) {
  Problem problem;
  for (int i = 0; i < 36; ++i) {
    problem.bits.push_back({8, 6.25, 4.5, 6.25});
    problem.score.push_back({0, 1e-4, 2e-4, 1e-4});
    problem.width.push_back(1024);
  }
  // 20 units of 1.75 bits; every spread of them scores 52·1e-4: the first sites take 8 bits.
  const double budget = 4.5 + 20 * 1.75 / 36;
  std::vector<int> expected(36, 2);
  std::fill(expected.begin(), expected.begin() + 10, 0);
  for (int run = 0; run < 50; ++run) {
    ASSERT_EQ(solve(problem, budget)->choice, expected);
  }
}

TEST(Solve, EqualObjectivesTakeFewestBits) {
  const Problem problem{{{16, 8, 4}}, {{0.5, 0.5, 0.5}}, {10}};
  EXPECT_EQ(solve(problem, 16)->choice, std::vector<int>{2});
}

TEST(Solve, ABudgetAboveTheHighestLeavesEverySiteFree) {
  const Problem problem{{{4.5, 8, 16}, {4.5, 8, 16}}, {{3, 1, 2}, {3, 2, 1}}, {1, 5}};
  const auto solution = solve(problem, 1e9);
  ASSERT_TRUE(solution.ok());
  EXPECT_EQ(solution->choice, (std::vector<int>{1, 2}));  // the lowest score, not the most bits
  EXPECT_TRUE(solution->proven_optimal);
}

TEST(Solve, AnInfeasibleBudgetTellsTheReachableRange) {
  const Problem problem{{{4.5, 8}, {6.25, 8}}, {{1, 0}, {1, 0}}, {1, 1}};
  const auto solution = solve(problem, 5.25);
  ASSERT_FALSE(solution.ok());
  EXPECT_EQ(solution.error().code, ErrorCode::kInfeasible);
  EXPECT_EQ(solution.error().field, "budget");
  EXPECT_THAT(solution.error().message, HasSubstr("5.25"));
  EXPECT_THAT(solution.error().message, HasSubstr("5.375 … 8 bits"));
  EXPECT_EQ(solve(problem, 5.375)->choice, (std::vector<int>{0, 0}));
}

TEST(Solve, BudgetsThatAreNoNumberAreRefused) {
  const Problem problem{{{4.5}}, {{0}}, {1}};
  for (const double budget : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(solve(problem, budget).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(solve(problem, budget).error().field, "budget");
  }
}

TEST(Solve, WithoutTimeTheBestKnownComesWithItsGapAndIsNotCalledProven) {
  std::mt19937_64 random(7);
  const Problem problem = test::random_problem({64, 6, 1, false, false}, &random);
  const double budget = test::random_budget(problem, &random);
  const auto solution = solve(problem, budget, {.time_limit_seconds = 0});
  ASSERT_TRUE(solution.ok());
  EXPECT_FALSE(solution->proven_optimal);
  EXPECT_GT(solution->gap, 0);
  const double best = test::capacity_program(problem, budget);
  EXPECT_LE(solution->lower_bound, best);
  EXPECT_GE(solution->objective, best);
}

TEST(Solve, CbcAloneProvesWhatTheDynamicProgramMayNotHold) {
  int by_cbc = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = test::random_problem({20, 4, 1e-8, false, false}, &random);
    const double budget = test::random_budget(problem, &random);
    const auto solution = solve(problem, budget, {.max_points = 1});
    ASSERT_TRUE(solution.ok()) << "seed " << seed;
    const double best = test::capacity_program(problem, budget);
    // To 1e-9 of the relaxation's gap, which is far below the objective's own size here.
    EXPECT_TRUE(std::fabs(solution->objective - best) <= 1e-9 * std::fabs(best)) << "seed " << seed;
    EXPECT_TRUE(solution->proven_optimal) << "seed " << seed;
    by_cbc += solution->cbc == CbcVerdict::kAgreed ? 1 : 0;  // else the bound alone decided
    EXPECT_NE(solution->cbc, CbcVerdict::kDisagreed) << "seed " << seed;
  }
  EXPECT_GT(by_cbc, 5);
}

TEST(Solve, BitsThatAreNoShortFractionsAreSolvedExactlyToo) {
  const double pi = 3.14159265358979323846;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    Problem problem = test::random_problem({6, 4, 1, false, false}, &random);
    const double budget = test::random_budget(problem, &random);
    const auto expected = test::enumerate(problem, budget);
    for (auto& row : problem.bits) {
      for (double& bits : row) {
        bits *= pi;
      }
    }
    ASSERT_FALSE(to_integers(problem).exact_weights);
    const auto solution = solve(problem, budget * pi);
    ASSERT_EQ(solution.ok(), expected.feasible) << "seed " << seed;
    if (expected.feasible) {
      EXPECT_TRUE(same_objective(problem, solution->objective, expected.objective)) << seed;
    }
  }
}

TEST(Solve, ScoresFrom1e12DownTo1em12InOneProblem) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    Problem problem = test::random_problem({5, 4, 1, false, false}, &random);
    std::uniform_real_distribution<double> exponent(-12, 12);
    for (auto& row : problem.score) {
      for (double& score : row) {
        score = std::pow(10, exponent(random));
      }
    }
    const double budget = test::random_budget(problem, &random);
    const auto expected = test::enumerate(problem, budget);
    const auto solution = solve(problem, budget);
    ASSERT_EQ(solution.ok(), expected.feasible) << "seed " << seed;
    if (expected.feasible) {
      EXPECT_EQ(solution->choice, expected.choice) << "seed " << seed;
    }
  }
}

TEST(Solve, SolvesOnTwoThreadsAtOnceDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(2, 0);
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([t, &wrong] {
      for (std::uint64_t seed = 0; seed < 100; ++seed) {
        std::mt19937_64 random(1000 * t + seed);
        const Problem problem = test::random_problem({24, 4, 1, false, false}, &random);
        const double budget = test::random_budget(problem, &random);
        const auto solution = solve(problem, budget);
        if (!solution.ok() || !solution->proven_optimal ||
            !same_objective(problem, solution->objective,
                            test::capacity_program(problem, budget))) {
          ++wrong[t];
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace bitalloc
