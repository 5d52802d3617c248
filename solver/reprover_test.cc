#include "solver/reprover.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "solver/test_problems.h"

namespace bitalloc {
namespace {

Constraints budget_of(double bits) {
  Constraints constraints;
  constraints.effective_bits = bits;
  return constraints;
}

// Waits (a minute at most, for slow machines) until nothing waits.
Reprover::Counts settled(const Reprover& reprover) {
  for (int k = 0; k < 6000 && reprover.counts().waiting > 0; ++k) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return reprover.counts();
}

TEST(Reprover, AgreesWithTheFastPath) {
  Reprover reprover(10, 32);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = test::random_problem({12, 4, 1e-8, false, false}, &random);
    const double budget = effective_bits_of(problem, std::vector<int>(12, 1));
    const auto solution = solve(problem, budget);
    ASSERT_TRUE(solution.ok() && solution->proven_optimal);
    reprover.submit(problem, budget_of(budget), *solution);
  }
  const auto counts = settled(reprover);
  EXPECT_EQ(counts.agreed, 20u);
  EXPECT_EQ(counts.disagreed, 0u);
}

// An answer that somebody made worse (and one that is too good to be true) does not pass.
TEST(Reprover, FindsAWrongAnswerOut) {
  std::mt19937_64 random(5);
  const Problem problem = test::random_problem({12, 4, 1e-8, false, false}, &random);
  const double budget = effective_bits_of(problem, std::vector<int>(12, 1));
  const auto right = solve(problem, budget);
  ASSERT_TRUE(right.ok());
  Solution worse = *right;
  worse.objective += 1e-3 * std::abs(worse.objective);
  EXPECT_EQ(prove_again(problem, budget_of(budget), worse, 10), CbcVerdict::kDisagreed);
  Solution better = *right;
  better.objective -= 1e-3 * std::abs(better.objective);
  EXPECT_EQ(prove_again(problem, budget_of(budget), better, 10), CbcVerdict::kDisagreed);
  EXPECT_EQ(prove_again(problem, budget_of(budget - 1000), *right, 10), CbcVerdict::kDisagreed);
}

// Strongly correlated: what a candidate gains is what it weighs plus a constant, over weights with
// nothing in common. CBC would take hours.
Problem hard_problem() {
  std::mt19937_64 random(1);
  Problem problem;
  for (int i = 0; i < 128; ++i) {
    const double width = 1 + static_cast<double>(random() % 65536);
    auto& bits = problem.bits.emplace_back();
    auto& score = problem.score.emplace_back();
    for (int j = 0; j < 8; ++j) {
      bits.push_back(4.5 + (j > 0 ? static_cast<double>(random() % 736) / 64 : 0));
      score.push_back(2e6 - width * (bits.back() - 4.5) - (j > 0 ? 75000 : 0));
    }
    problem.width.push_back(width);
  }
  return problem;
}

TEST(Reprover, EndsWhileAProofRunsAndDropsTheOldestOfTooMany) {
  const Problem problem = hard_problem();
  const auto solution = solve(problem, 9.123, {.time_limit_seconds = 0.1});
  ASSERT_TRUE(solution.ok());
  const auto start = std::chrono::steady_clock::now();
  {
    Reprover reprover(600, 2);
    for (int k = 0; k < 5; ++k) {
      reprover.submit(problem, budget_of(9.123), *solution);
    }
    // One may run, two wait.
    EXPECT_GE(reprover.counts().dropped, 2u);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  // Not a matter of speed: the proofs have 600 s each.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Solve, AStopTokenEndsASolveThatCbcWorksOn) {
  const Problem problem = hard_problem();
  std::stop_source source;
  SolveOptions options;
  options.max_points = 1;
  options.time_limit_seconds = 600;
  options.stop = source.get_token();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    source.request_stop();
  });
  const auto start = std::chrono::steady_clock::now();
  const auto solution = solve(problem, 9.123, options);
  later.join();
  ASSERT_FALSE(solution.ok());
  EXPECT_EQ(solution.error().code, ErrorCode::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Solve, TheTimeLimitHoldsWhileCbcWorks) {
  const auto solution = solve(hard_problem(), 9.123, {.time_limit_seconds = 0.3, .max_points = 1});
  ASSERT_TRUE(solution.ok());
  EXPECT_FALSE(solution->proven_optimal);
  EXPECT_GT(solution->gap, 0);
  EXPECT_LT(solution->solve_ms, 60'000);
}

}  // namespace
}  // namespace bitalloc
