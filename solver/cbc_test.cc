#include "solver/cbc.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

namespace bitalloc {
namespace {

// Worked by hand: max 10a + 6b + 4c, 5a + 4b + 3c ≤ 8 → a + c = 14 (a + b weighs 9).
TEST(Cbc, HandWorkedKnapsack) {
  const BinaryProgram program{
      {-10, -6, -4}, {1, 1, 1}, {true, true, true}, {{{0, 1, 2}, {5, 4, 3}, 0, 8}}};
  const auto answer = run_cbc(program, {});
  ASSERT_TRUE(answer.ok());
  ASSERT_EQ(answer->status, CbcAnswer::Status::kOptimal);
  EXPECT_EQ(std::vector<long>(
                {std::lround(answer->x[0]), std::lround(answer->x[1]), std::lround(answer->x[2])}),
            std::vector<long>({1, 0, 1}));
}

TEST(Cbc, SaysWhenThereIsNoSolution) {
  const BinaryProgram program{{1, 1}, {1, 1}, {true, true}, {{{0, 1}, {1, 1}, 3, 3}}};
  const auto answer = run_cbc(program, {});
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->status, CbcAnswer::Status::kInfeasible);
  EXPECT_TRUE(answer->x.empty());
}

TEST(Cbc, PrintsNothing) {
  testing::internal::CaptureStdout();
  const BinaryProgram program{{-1, -1}, {1, 1}, {true, true}, {{{0, 1}, {2, 3}, 0, 4}}};
  ASSERT_TRUE(run_cbc(program, {}).ok());
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

// A second caller gets its turn or its time limit, never CBC at the same time.
TEST(Cbc, CallersOnManyThreadsQueue) {
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&right] {
      for (int run = 0; run < 25; ++run) {
        const BinaryProgram program{
            {-10, -6, -4}, {1, 1, 1}, {true, true, true}, {{{0, 1, 2}, {5, 4, 3}, 0, 8}}};
        const auto answer = run_cbc(program, {});
        right += answer.ok() && answer->x.size() == 3 && std::lround(answer->x[2]) == 1 ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(right, 100);
}

// CBC once said "optimal" of whatever it had when its time was up in the middle of a relaxation.
// The true optimum is that of a table over weights.
TEST(Cbc, AnInterruptedRunIsNotCalledOptimal) {
  std::mt19937_64 random(3);
  BinaryProgram program;
  LinearRow row{{}, {}, 0, 4000};
  std::vector<double> best(4001, 0);
  for (int j = 0; j < 60; ++j) {
    const int weight = 100 + static_cast<int>(random() % 400);
    const double gain = weight + 50 + static_cast<double>(random() % 1000) / 1000;
    program.cost.push_back(-gain);
    program.upper.push_back(1);
    program.integral.push_back(true);
    row.columns.push_back(j);
    row.coefficients.push_back(weight);
    for (int c = 4000; c >= weight; --c) {
      best[c] = std::max(best[c], best[c - weight] + gain);
    }
  }
  program.rows.push_back(row);
  for (int k = 0; k < 80; ++k) {
    CbcLimits limits;
    limits.seconds = 1e-5 * std::pow(1.1, k);  // 10 µs to 20 ms
    const auto answer = run_cbc(program, limits);
    ASSERT_TRUE(answer.ok());
    EXPECT_NE(answer->status, CbcAnswer::Status::kInfeasible) << limits.seconds;
    if (answer->status == CbcAnswer::Status::kOptimal) {
      double cost = 0;
      for (std::size_t j = 0; j < answer->x.size(); ++j) {
        cost += answer->x[j] * program.cost[j];
      }
      EXPECT_NEAR(cost, -best.back(), 1e-6) << limits.seconds;
      break;  // longer limits are the same
    }
  }
}

}  // namespace
}  // namespace bitalloc
