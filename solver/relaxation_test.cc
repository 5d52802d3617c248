#include "solver/relaxation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "solver/test_problems.h"

namespace bitalloc {
namespace {

// Worked by hand. Hull edges: site 0 (0→2) slope 2 over the weak middle item, site 1 (0→1) slope 3
// then (1→2) slope 1. Capacity 2: the steepest edge fits, half of the next one does not.
// λ = 2: min(4, 0 + 4) + min(4, 1 + 2, 0 + 4) − 2·2 = 4 + 3 − 4 = 3.
TEST(Relaxation, HandWorkedBound) {
  const Sites sites = {{{0, 0, 4}, {1, 1, 3.5}, {2, 2, 0}}, {{0, 0, 4}, {1, 1, 1}, {2, 2, 0}}};
  const auto steps = hull_steps(sites);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].site, 1);
  EXPECT_EQ(steps[1].site, 0);
  EXPECT_EQ(steps[1].to, 2);
  EXPECT_EQ(steps[1].slope, 2);
  const Relaxation relaxation = relax(sites, 2);
  EXPECT_EQ(relaxation.multiplier, 2);
  EXPECT_NEAR(relaxation.lower_bound, 3, 1e-12);
  // Rounded: one unit on site 1 (4 + 1), the other unit gains 0.5 on site 0 and 1 on site 1.
  EXPECT_EQ(relaxation.rounded, (std::vector<int>{0, 2}));
  EXPECT_EQ(relaxation.upper_bound, 4);
}

TEST(Relaxation, RoomForEverythingIsBoundedByTheFreeOptimum) {
  const Relaxation relaxation = relax({{{0, 0, 1}, {1, 1, 0}}}, 1);
  EXPECT_EQ(relaxation.multiplier, 0);
  EXPECT_EQ(relaxation.lower_bound, 0);
  EXPECT_EQ(relaxation.upper_bound, 0);
}

TEST(Relaxation, BoundsTheOptimumAndFixingKeepsIt) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = test::random_problem({5, 4, 1, seed % 2 == 0, false}, &random);
    const double budget = test::random_budget(problem, &random);
    const test::Best best = test::enumerate(problem, budget);
    if (!best.feasible) {
      continue;
    }
    const IntegerProblem integers = to_integers(problem);
    const std::int64_t capacity = capacity_of(integers, budget);
    const Relaxation relaxation = relax(integers.efficient, capacity);
    const double optimum = best.objective - static_cast<double>(integers.score_offset);
    EXPECT_LE(relaxation.lower_bound, optimum + 1e-12) << "seed " << seed;
    EXPECT_GE(relaxation.upper_bound, optimum - 1e-12) << "seed " << seed;
    const Sites kept =
        fix_by_reduced_cost(integers.efficient, capacity, relaxation, optimum + 1e-12);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(std::any_of(kept[i].begin(), kept[i].end(),
                              [&](const Item& item) { return item.candidate == best.choice[i]; }))
          << "seed " << seed << " site " << i;
    }
  }
}

}  // namespace
}  // namespace bitalloc
