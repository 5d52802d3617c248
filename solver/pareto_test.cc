#include "solver/pareto.h"

#include <gtest/gtest.h>

#include "solver/test_problems.h"

namespace bitalloc {
namespace {

using Points = std::vector<std::pair<std::int64_t, double>>;

Points points_of(const ParetoTable& table) {
  Points out;
  for (const ParetoPoint& point : table.points()) {
    out.emplace_back(point.weight, point.score);
  }
  return out;
}

// Worked by hand: sums (0,7) (1,4) (3,5) (4,2); (3,5) is dominated by (1,4).
TEST(Pareto, HandWorkedTable) {
  const Sites sites = {{{0, 0, 5}, {1, 3, 3}}, {{0, 0, 2}, {1, 1, -1}}};
  const auto table = ParetoTable::build(sites, 10, nullptr, {});
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(points_of(*table), (Points{{0, 7}, {1, 4}, {4, 2}}));
  EXPECT_EQ(table->smallest_choice(sites, 4, 2), (std::vector<int>{1, 1}));
  EXPECT_EQ(table->smallest_choice(sites, 10, 4), (std::vector<int>{0, 1}));
  EXPECT_EQ(table->smallest_choice(sites, 10, 7), (std::vector<int>{0, 0}));
  const auto within_three = ParetoTable::build(sites, 3, nullptr, {});
  EXPECT_EQ(points_of(*within_three), (Points{{0, 7}, {1, 4}}));
}

// The same sums merged cell by cell and as sorted lists: weights times a million are sparse.
TEST(Pareto, DenseAndSparseMergesAgree) {
  std::mt19937_64 random(2);
  Sites dense(6);
  for (auto& items : dense) {
    for (int j = 0; j < 4; ++j) {
      items.push_back({j, 3 * j + static_cast<int>(random() % 3), 8.0 - 2 * j - (random() % 2)});
    }
  }
  Sites sparse = dense;
  for (auto& items : sparse) {
    for (Item& item : items) {
      item.weight *= 1'000'000;
    }
  }
  const auto a = ParetoTable::build(dense, 40, nullptr, {});
  const auto b = ParetoTable::build(sparse, 40'000'000, nullptr, {});
  ASSERT_TRUE(a && b);
  ASSERT_EQ(a->points().size(), b->points().size());
  for (std::size_t k = 0; k < a->points().size(); ++k) {
    EXPECT_EQ(a->points()[k].weight * 1'000'000, b->points()[k].weight);
    EXPECT_EQ(a->points()[k].score, b->points()[k].score);
  }
}

TEST(Pareto, AWindowKeepsEverySumWithinItsLimit) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = test::random_problem({6, 4, 1, false, seed % 2 == 0}, &random);
    const IntegerProblem integers = to_integers(problem);
    const std::int64_t capacity = static_cast<std::int64_t>(random() % (integers.max_weight + 1));
    const Relaxation relaxation = relax(integers.efficient, capacity);
    const double limit = relaxation.upper_bound * (1 + 1e-12);  // sums round by their order
    const ParetoWindow window{relaxation, limit};
    const auto all = ParetoTable::build(integers.efficient, capacity, nullptr, {});
    const auto within = ParetoTable::build(integers.efficient, capacity, &window, {});
    ASSERT_TRUE(all && within);
    Points expected;
    for (const auto& [weight, score] : points_of(*all)) {
      if (score <= limit) {
        expected.emplace_back(weight, score);
      }
    }
    EXPECT_EQ(points_of(*within), expected) << "seed " << seed;
  }
}

TEST(Pareto, StopsAtItsLimits) {
  const Sites sites(4, {{0, 0, 2}, {1, 1, 1}, {2, 2, 0}});
  EXPECT_FALSE(ParetoTable::build(sites, 8, nullptr, {.max_points = 10}).has_value());
  EXPECT_FALSE(ParetoTable::build(sites, 8, nullptr, {.max_suffix_points = 5}).has_value());
  EXPECT_FALSE(ParetoTable::build(sites, 8, nullptr, {.deadline = std::chrono::steady_clock::now()})
                   .has_value());
}

}  // namespace
}  // namespace bitalloc
