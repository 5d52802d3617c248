#include "solver/conflict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "solver/test_problems.h"

namespace bitalloc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three sites of 4, 8 or 16 bits over 10 elements each.
Problem three_sites() {
  const std::vector<double> bits = {4, 8, 16};
  return {{bits, bits, bits}, {{3, 2, 1}, {3, 2, 1}, {3, 2, 1}}, {10, 10, 10}};
}

Row bits_row(const std::string& name, double upper) {
  const std::vector<double> bits = {4, 8, 16};
  Row row{name, {bits, bits, bits}};
  row.upper = upper;
  return row;
}

// By hand: 4 + 4 + 4 = 12 fit into 12 bits; a pin to 16 makes 24. The group, the exclusion and the
// loose row take no part.
TEST(Conflict, NamesThePinAndTheRowThatConflictAndNothingElse) {
  Constraints constraints;
  constraints.rows = {bits_row("loose", 40), bits_row("rank 0", 20)};
  constraints.pins = {{"keep layer 1", 1, 2}, {"", 2, 0}};
  constraints.exclusions = {{"", 0, 2}};
  constraints.groups = {{"", {0, 2}}};
  const auto conflict = find_conflict(three_sites(), constraints);
  ASSERT_TRUE(conflict.ok());
  EXPECT_THAT(conflict->names, ElementsAre("rank 0", "keep layer 1"));
  EXPECT_TRUE(conflict->smallest);
  const auto solution = solve(three_sites(), constraints);
  ASSERT_FALSE(solution.ok());
  EXPECT_EQ(solution.error().code, ErrorCode::kInfeasible);
  EXPECT_EQ(solution.error().field, "rank 0, keep layer 1");
  EXPECT_THAT(solution.error().message, HasSubstr("rank 0 (at most 20)"));
  EXPECT_THAT(solution.error().message, HasSubstr("keep layer 1 (site 1 takes candidate 2)"));
}

// Deletion in order would end at the three exclusions that empty site 0; the two pins are fewer.
TEST(Conflict, PrefersTheSetOfFewestConstraints) {
  Constraints constraints;
  constraints.pins = {{"", 1, 0}, {"", 1, 1}};
  constraints.exclusions = {{"", 0, 0}, {"", 0, 1}, {"", 0, 2}};
  const auto conflict = find_conflict(three_sites(), constraints);
  ASSERT_TRUE(conflict.ok());
  EXPECT_THAT(conflict->names, ElementsAre("pins[0]", "pins[1]"));
  EXPECT_TRUE(conflict->smallest);
}

TEST(Conflict, OfTheBudgetAloneTellsTheReachableRange) {
  Constraints constraints;
  constraints.effective_bits = 3;
  constraints.pins = {{"", 0, 0}};
  const auto solution = solve(three_sites(), constraints);
  ASSERT_FALSE(solution.ok());
  EXPECT_EQ(solution.error().field, "budget");
  EXPECT_THAT(solution.error().message, HasSubstr("4 … 16 bits"));
}

TEST(Conflict, NamesLimits) {
  Constraints constraints;
  constraints.distinct = DistinctLimit{"", 1, {{"a", "b", "c"}, {"a", "b", "c"}, {"a", "b", "c"}}};
  constraints.changes = ChangeLimit{"", 0, {0, 1, -1}};
  const auto conflict = find_conflict(three_sites(), constraints);
  ASSERT_TRUE(conflict.ok());
  EXPECT_THAT(conflict->names, ElementsAre("max_distinct", "max_changes"));
}

TEST(Conflict, OfALowerAndAnUpperRow) {
  Constraints constraints;
  constraints.rows = {bits_row("most", 20), bits_row("least", 0), bits_row("other", 48)};
  constraints.rows[1].upper = std::numeric_limits<double>::infinity();
  constraints.rows[1].lower = 21;
  const auto conflict = find_conflict(three_sites(), constraints);
  ASSERT_TRUE(conflict.ok());
  EXPECT_THAT(conflict->names, ElementsAre("most", "least"));
}

// Whether every assignment of two sites breaks some constraint of the set, by trying all.
bool conflicts(const Problem& problem, const Constraints& constraints) {
  for (int a = 0; a < static_cast<int>(problem.bits[0].size()); ++a) {
    for (int b = 0; b < static_cast<int>(problem.bits[1].size()); ++b) {
      if (violations(problem, constraints, {a, b}).empty()) return false;
    }
  }
  return true;
}

TEST(Conflict, NoSetOfFewerConstraintsConflictsByTryingAllSets) {
  int seen = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = test::random_problem({2, 3, 1, false, false}, &random);
    Constraints constraints;
    constraints.effective_bits = test::random_budget(problem, &random);
    for (int k = 0; k < 2; ++k) {
      Row row{"", {{1, 2, 3}, {3, 1, 2}}};
      row.upper = static_cast<double>(2 + random() % 4);
      constraints.rows.push_back(row);
    }
    constraints.pins = {{"", 0, static_cast<int>(random() % 3)}};
    for (int k = 0; k < 4; ++k) {
      constraints.exclusions.push_back(
          {"", static_cast<int>(random() % 2), static_cast<int>(random() % 3)});
    }
    constraints.groups = {{"", {0, 1}}};
    if (!conflicts(problem, constraints)) continue;
    ++seen;
    const std::size_t count = constraint_names(constraints).size();
    std::size_t fewest = count;
    for (unsigned set = 0; set < (1u << count); ++set) {
      std::vector<bool> kept;
      for (std::size_t k = 0; k < count; ++k) kept.push_back((set >> k & 1) != 0);
      if (conflicts(problem, subset(constraints, kept))) {
        fewest = std::min<std::size_t>(fewest, std::count(kept.begin(), kept.end(), true));
      }
    }
    const auto conflict = find_conflict(problem, constraints);
    ASSERT_TRUE(conflict.ok());
    EXPECT_EQ(conflict->names.size(), fewest) << "seed " << seed;
    EXPECT_TRUE(conflict->smallest) << "seed " << seed;
    std::vector<bool> kept;
    for (const auto& name : constraint_names(constraints)) {
      kept.push_back(std::count(conflict->names.begin(), conflict->names.end(), name) > 0);
    }
    EXPECT_TRUE(conflicts(problem, subset(constraints, kept))) << "seed " << seed;
  }
  EXPECT_GT(seen, 100);
}

}  // namespace
}  // namespace bitalloc
