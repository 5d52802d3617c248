// best_neighbours() against the list of all assignments.
#include "solver/neighbours.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "solver/test_problems.h"

namespace bitalloc {
namespace {

using Random = std::mt19937_64;
using Choice = std::vector<int>;

int random_site(const Problem& problem, Random* random) {
  return static_cast<int>((*random)() % problem.num_sites());
}

// A row that `choice` keeps, now and then with nothing to spare.
Row random_row(const Problem& problem, const Choice& choice, Random* random) {
  Row row;
  double sum = 0;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    auto& site = row.coefficient.emplace_back();
    for (std::size_t j = 0; j < problem.bits[i].size(); ++j) {
      site.push_back(static_cast<double>((*random)() % 9) - 2);
    }
    sum += site[choice[i]];
  }
  row.upper = sum + static_cast<double>((*random)() % 4);
  if ((*random)() % 2 == 0) row.lower = sum - static_cast<double>((*random)() % 4);
  return row;
}

// Those that `choice` keeps; groups are made by changing it.
Constraints random_constraints(const Problem& problem, Choice* choice, Random* random) {
  Constraints all;
  const auto now_and_then = [&] { return (*random)() % 3 == 0; };
  for (int k = 0; k < 2 && now_and_then(); ++k) {
    const Group group{"", {random_site(problem, random), random_site(problem, random)}};
    (*choice)[group.sites[1]] = (*choice)[group.sites[0]];
    all.groups.push_back(group);
  }
  if (all.groups.size() == 2) (*choice)[all.groups[0].sites[0]] = (*choice)[0];
  if (now_and_then()) all.rows.push_back(random_row(problem, *choice, random));
  const int site = random_site(problem, random);
  const int other = random_site(problem, random);
  if (now_and_then()) all.pins.push_back({"", site, (*choice)[site]});
  if (now_and_then()) all.exclusions.push_back({"", other, ((*choice)[other] + 1) % 3});
  if (site != other && now_and_then()) {
    all.pairs.push_back({"", site, other, {{(*choice)[site], (*choice)[other]}, {0, 1}, {2, 2}}});
  }
  if (now_and_then()) {
    DistinctLimit distinct{"", 1 + static_cast<int>((*random)() % 3), {}};
    for (const auto& row : problem.bits) {
      auto& labels = distinct.labels.emplace_back();
      for (std::size_t j = 0; j < row.size(); ++j) labels.push_back(j < 2 ? "a" : "b");
      labels.back() = "c";
    }
    all.distinct = distinct;
  }
  if (now_and_then()) {
    ChangeLimit changes{"", static_cast<int>((*random)() % 4), *choice};
    changes.deployed[site] = -1;
    changes.deployed[other] = 0;
    all.changes = changes;
  }
  if (!now_and_then()) {
    all.effective_bits = effective_bits_of(problem, *choice) * (now_and_then() ? 1.05 : 1);
  }
  return all;
}

std::vector<Choice> sorted_choices(const std::vector<Neighbour>& neighbours) {
  std::vector<Choice> choices;
  for (const Neighbour& one : neighbours) choices.push_back(one.choice);
  std::sort(choices.begin(), choices.end());
  return choices;
}

TEST(Neighbours, AreThoseAmongAllAssignments) {
  int instances = 0;
  std::size_t most = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Problem problem = test::random_problem({5, 3, 1, seed % 2 == 0, seed % 3 == 0}, &random);
    Choice choice;
    for (const auto& row : problem.bits) choice.push_back(static_cast<int>(random() % row.size()));
    const Constraints constraints = random_constraints(problem, &choice, &random);
    ASSERT_TRUE(validate(problem, constraints).ok()) << "seed " << seed;
    if (!violations(problem, constraints, choice).empty()) continue;
    ++instances;
    const std::vector<Choice> expected = test::enumerate_neighbours(problem, constraints, choice);
    most = std::max(most, expected.size());

    const auto found = best_neighbours(problem, constraints, choice, {}, 1000);
    ASSERT_EQ(sorted_choices(found), expected) << "seed " << seed;
    for (std::size_t k = 0; k < found.size(); ++k) {
      const double change = objective_of(problem, found[k].choice) - objective_of(problem, choice);
      EXPECT_NEAR(found[k].change, change, 1e-12) << "seed " << seed;
      EXPECT_GE(found[k].change, found[k > 0 ? k - 1 : 0].change) << "seed " << seed;
    }

    // Fewer are the first of them; known ones are left out.
    const auto three = best_neighbours(problem, constraints, choice, {}, 3);
    ASSERT_EQ(three.size(), std::min<std::size_t>(3, found.size()));
    std::set<Choice> known;
    for (std::size_t k = 0; k < three.size(); ++k) {
      EXPECT_EQ(three[k].choice, found[k].choice) << "seed " << seed;
      known.insert(three[k].choice);
    }
    const auto others = best_neighbours(problem, constraints, choice, known, 1000);
    ASSERT_EQ(others.size() + three.size(), found.size());
    for (std::size_t k = 0; k < others.size(); ++k) {
      EXPECT_EQ(others[k].choice, found[k + three.size()].choice) << "seed " << seed;
    }
  }
  EXPECT_GT(instances, 1500);
  EXPECT_GT(most, 30u);
}

}  // namespace
}  // namespace bitalloc
