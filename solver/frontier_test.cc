#include "solver/frontier.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "solver/solve.h"
#include "solver/test_problems.h"

namespace bitalloc {
namespace {

void expect_staircase(const Frontier& frontier) {
  for (std::size_t k = 1; k < frontier.points.size(); ++k) {
    EXPECT_GT(frontier.points[k].effective_bits, frontier.points[k - 1].effective_bits);
    EXPECT_LT(frontier.points[k].objective, frontier.points[k - 1].objective);
  }
}

// Bits → best objective over all assignments, then the lower-left staircase of it.
std::vector<std::pair<double, double>> enumerate_staircase(const Problem& problem) {
  std::map<double, double> best;
  std::vector<int> choice(problem.num_sites(), 0);
  for (bool more = true; more;) {
    const double bits = effective_bits_of(problem, choice);
    const double objective = objective_of(problem, choice);
    const auto [at, is_new] = best.emplace(bits, objective);
    at->second = std::min(at->second, objective);
    more = false;
    for (std::size_t i = choice.size(); i-- > 0 && !more;) {
      more = ++choice[i] < static_cast<int>(problem.bits[i].size());
      choice[i] = more ? choice[i] : 0;
    }
  }
  std::vector<std::pair<double, double>> steps;
  for (const auto& [bits, objective] : best) {
    if (steps.empty() || objective < steps.back().second - 1e-12 * std::fabs(objective)) {
      steps.emplace_back(bits, objective);
    }
  }
  return steps;
}

TEST(Frontier, IsTheStaircaseOfAllAssignments) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = test::random_problem({5, 4, 1, seed % 2 == 0, seed % 3 == 0}, &random);
    const auto frontier = solve_frontier(problem);
    ASSERT_TRUE(frontier.ok());
    EXPECT_TRUE(frontier->exact);
    const auto expected = enumerate_staircase(problem);
    ASSERT_EQ(frontier->points.size(), expected.size()) << "seed " << seed;
    for (std::size_t k = 0; k < expected.size(); ++k) {
      EXPECT_NEAR(frontier->points[k].effective_bits, expected[k].first, 1e-12) << "seed " << seed;
      EXPECT_NEAR(frontier->points[k].objective, expected[k].second, 1e-11) << "seed " << seed;
    }
  }
}

TEST(Frontier, EveryPointIsWhatSolveGivesForItsBits) {
  std::mt19937_64 random(3);
  const Problem problem = test::random_problem({36, 4, 1e-6, false, true}, &random);
  const auto frontier = solve_frontier(problem);
  ASSERT_TRUE(frontier.ok());
  ASSERT_GT(frontier->points.size(), 20u);
  expect_staircase(*frontier);
  for (std::size_t k = 0; k < frontier->points.size(); k += 7) {
    const FrontierPoint& point = frontier->points[k];
    EXPECT_EQ(solve(problem, point.effective_bits)->choice, point.choice);
  }
}

TEST(Frontier, ManySitesAndCandidates) {
  Problem problem;
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 128; ++i) {
    problem.bits.emplace_back();
    problem.score.emplace_back();
    for (int j = 0; j < 8; ++j) {
      problem.bits.back().push_back(2 + 2 * j);
      problem.score.back().push_back(std::exp(normal(random) - j));
    }
    problem.width.push_back(i % 2 == 0 ? 1024 : 256);
  }
  const auto frontier = solve_frontier(problem);
  ASSERT_TRUE(frontier.ok());
  EXPECT_TRUE(frontier->exact);
  EXPECT_GT(frontier->points.size(), 1000u);
  expect_staircase(*frontier);
}

TEST(Frontier, BeyondItsLimitsKeepsTheExtremePointsAndSaysSo) {
  std::mt19937_64 random(11);
  const Problem problem = test::random_problem({12, 4, 1, false, false}, &random);
  const auto exact = solve_frontier(problem);
  const auto hull = solve_frontier(problem, {.max_points = 5});
  ASSERT_TRUE(exact.ok() && hull.ok());
  EXPECT_FALSE(hull->exact);
  expect_staircase(*hull);
  std::set<std::vector<int>> efficient;
  for (const auto& point : exact->points) {
    efficient.insert(point.choice);
  }
  for (const auto& point : hull->points) {
    EXPECT_TRUE(efficient.count(point.choice)) << point.effective_bits;
  }
  EXPECT_EQ(hull->points.front().choice, exact->points.front().choice);
  EXPECT_EQ(hull->points.back().choice, exact->points.back().choice);
}

TEST(Frontier, RefusesAnInvalidProblem) {
  EXPECT_EQ(solve_frontier({}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitalloc
