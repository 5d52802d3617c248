#include "solver/cbc.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
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

}  // namespace
}  // namespace bitalloc
