#include "solver/core.h"

#include <gtest/gtest.h>

#include <cmath>

#include "solver/test_problems.h"

namespace bitalloc {
namespace {

// The core as solve() hands it over, but with neither start nor help: CBC finds the optimum itself.
TEST(Core, CbcFindsTheOptimumOfTheCoreFromNothing) {
  int asked = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = test::random_problem({16, 4, 1e-10, false, false}, &random);
    const double budget = test::random_budget(problem, &random);
    const IntegerProblem integers = to_integers(problem);
    const std::int64_t capacity = capacity_of(integers, budget);
    const Relaxation relaxation = relax(integers.efficient, capacity);
    const double limit = relaxation.upper_bound * (1 + 1e-9);
    const Sites sites = fix_by_reduced_cost(integers.efficient, capacity, relaxation, limit);
    const double gap = limit - relaxation.lower_bound;
    const Core core = make_core(sites, capacity, relaxation, gap);
    if (core.program.cost.empty()) {
      continue;
    }
    ++asked;
    const auto answer = run_cbc(core.program, {});
    ASSERT_TRUE(answer.ok());
    ASSERT_EQ(answer->status, CbcAnswer::Status::kOptimal) << "seed " << seed;
    const auto picked = from_columns(core, sites, capacity, answer->x);
    ASSERT_TRUE(picked.has_value()) << "seed " << seed;
    std::vector<int> choice;
    for (std::size_t i = 0; i < sites.size(); ++i) {
      choice.push_back(sites[i][(*picked)[i]].candidate);
    }
    const double best = test::capacity_program(problem, budget);
    EXPECT_TRUE(std::fabs(objective_of(problem, choice) - best) <=
                1e-9 * gap + 1e-12 * std::fabs(best))
        << "seed " << seed;
  }
  EXPECT_GT(asked, 30);
}

TEST(Core, ColumnsAndBack) {
  const Sites sites = {{{0, 0, 2.0}, {1, 3, 0.0}}, {{2, 1, 0.0}}, {{0, 0, 1.0}, {1, 2, 0.5}}};
  const Relaxation relaxation =
      relax({{{0, 0, 2.0}, {1, 3, 0.0}}, {{2, 1, 0.0}}, {{0, 0, 1.0}, {1, 2, 0.5}}}, 4);
  const Core core = make_core(sites, 4, relaxation, 1.0);
  EXPECT_EQ(core.program.cost.size(), 5u);  // two sites of two, and the unused capacity
  const std::vector<int> picked = {1, 0, 0};
  const auto x = to_columns(core, sites, 4, picked);
  EXPECT_EQ(from_columns(core, sites, 4, x), picked);
  EXPECT_FALSE(from_columns(core, sites, 3, x).has_value());  // it weighs 4
  EXPECT_FALSE(from_columns(core, sites, 4, {0.5, 0.5, 1, 0, 0}).has_value());
}

}  // namespace
}  // namespace bitalloc
