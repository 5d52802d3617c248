// refine() on measurements with invented interactions, against the list of all assignments.
#include "solver/refine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "solver/solve.h"
#include "solver/test_problems.h"

namespace bitalloc {
namespace {

using Choice = std::vector<int>;
constexpr int kSequences = 5;

// Scores that add up but for a number of every pair of sites and their candidates.
class Trials {
 public:
  Trials(const Problem& problem, std::uint64_t seed) : problem_(problem), seed_(seed) {}

  std::vector<double> sums(const Choice& choice) const {
    std::vector<double> sums(kSequences, objective_of(problem_, choice) / kSequences);
    for (std::size_t a = 0; a < choice.size(); ++a) {
      for (std::size_t b = a + 1; b < choice.size(); ++b) {
        std::seed_seq names{static_cast<int>(seed_), static_cast<int>(a), choice[a],
                            static_cast<int>(b), choice[b]};
        std::mt19937_64 random(names);
        for (double& sum : sums) {
          sum += 0.02 * std::uniform_real_distribution<double>(0, 1)(random);
        }
      }
    }
    return sums;
  }

  double total(const Choice& choice) const {
    const std::vector<double> all = sums(choice);
    return std::accumulate(all.begin(), all.end(), 0.0);
  }

  Measure measure() {
    return [this](const std::vector<Choice>& choices, int round) {
      EXPECT_EQ(round, ++rounds_);
      std::vector<std::vector<double>> rows;
      for (const Choice& choice : choices) {
        EXPECT_TRUE(asked_.insert(choice).second) << "measured twice";
        rows.push_back(sums(choice));
      }
      return Result<std::vector<std::vector<double>>>(rows);
    };
  }

  const std::set<Choice>& asked() const { return asked_; }

 private:
  const Problem& problem_;
  std::uint64_t seed_;
  std::set<Choice> asked_;
  int rounds_ = 0;
};

struct Instance {
  explicit Instance(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    problem = test::random_problem({5, 3, 1, false, seed % 2 == 0}, &random);
    while (start.empty()) {
      constraints.effective_bits = test::random_budget(problem, &random);
      const auto solved = solve(problem, *constraints.effective_bits);
      if (solved.ok()) start = solved->choice;
    }
  }
  Problem problem;
  Constraints constraints;
  Choice start;
};

TEST(Refine, EndsWhereNoNeighbourIsBetter) {
  int improved = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Instance one(seed);
    Trials trials(one.problem, seed);
    const auto found =
        refine(one.problem, one.constraints, one.start, {1000, 1000}, trials.measure());
    ASSERT_TRUE(found.ok());
    ASSERT_TRUE(found->exhausted) << "seed " << seed;
    EXPECT_NE(found->end, Refinement::End::kRounds);
    const Choice& best = found->measured[found->best].choice;
    EXPECT_TRUE(violations(one.problem, one.constraints, best).empty());
    for (const Choice& other : test::enumerate_neighbours(one.problem, one.constraints, best)) {
      EXPECT_GE(trials.total(other), trials.total(best)) << "seed " << seed;
      EXPECT_TRUE(trials.asked().contains(other)) << "seed " << seed;
    }
    improved += best != one.start ? 1 : 0;
  }
  EXPECT_GT(improved, 20);
}

TEST(Refine, StopsAfterItsRoundsAndNeverGetsWorse) {
  std::set<Refinement::End> ends;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Instance one(seed);
    Trials trials(one.problem, seed);
    const RefineOptions options{3, 2};
    const auto found = refine(one.problem, one.constraints, one.start, options, trials.measure());
    ASSERT_TRUE(found.ok());
    ends.insert(found->end);
    EXPECT_EQ(found->measured[0].choice, one.start);
    EXPECT_LE(found->rounds, 2);
    EXPECT_LE(found->measured.size(), 1u + 2 * 3);
    const double best = trials.total(found->measured[found->best].choice);
    for (const Measured& measured : found->measured) {
      EXPECT_LE(best, trials.total(measured.choice)) << "seed " << seed;
    }
    const auto neighbours = test::enumerate_neighbours(one.problem, one.constraints,
                                                       found->measured[found->best].choice);
    const bool all = std::all_of(neighbours.begin(), neighbours.end(), [&](const Choice& other) {
      return trials.asked().contains(other);
    });
    EXPECT_EQ(found->exhausted, all) << "seed " << seed;
    if (found->end == Refinement::End::kRounds) {
      EXPECT_EQ(found->measured[found->best].round, 2) << "seed " << seed;
    }
  }
  EXPECT_TRUE(ends.contains(Refinement::End::kRounds));
  EXPECT_TRUE(ends.contains(Refinement::End::kNoneBetter));
}

TEST(Refine, NothingNextToTheOnlyAssignment) {
  const Problem problem{{{4, 8}, {4, 8}}, {{2, 1}, {2, 1}}, {1, 1}};
  Constraints constraints;
  constraints.effective_bits = 4;
  Trials trials(problem, 1);
  const auto found = refine(problem, constraints, {0, 0}, {}, trials.measure());
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->measured.size(), 1u);
  EXPECT_EQ(found->end, Refinement::End::kNoneLeft);
  EXPECT_TRUE(found->exhausted);
}

TEST(Refine, AnErrorOfAMeasurementEndsIt) {
  const Instance one(1);
  const Measure measure = [](const std::vector<Choice>&,
                             int) -> Result<std::vector<std::vector<double>>> {
    return unavailable("no worker", "id");
  };
  const auto found = refine(one.problem, one.constraints, one.start, {}, measure);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().message, "no worker");
}

// By hand: differences −1, 1 and 3 nats of 10, 20 and 10 tokens; R = 3/40, residuals −1.75, −0.5
// and 2.25; √(3/2 · 8.375) / 40.
TEST(Refine, DifferencesArePairedBySequence) {
  const Measured a{{}, 1, {4, 6, 8}};
  const Measured b{{}, 1, {5, 5, 5}};
  const Ratio difference = difference_of(a, b, {10, 20, 10});
  EXPECT_DOUBLE_EQ(difference.value, 3.0 / 40);
  EXPECT_NEAR(*difference.standard_error, std::sqrt(1.5 * 8.375) / 40, 1e-15);
}

// By hand. Ranks 1, 2.5, 2.5, 4, 5 and 2, 1, 3.5, 3.5, 5: 7.25 / 9.5. Line: 18.8 / 10.8.
TEST(Refine, Additivity) {
  const Additivity found = additivity({1, 2, 2, 4, 5}, {2, 1, 3, 3, 10});
  EXPECT_NEAR(*found.spearman, 7.25 / 9.5, 1e-15);
  EXPECT_NEAR(*found.slope, 18.8 / 10.8, 1e-15);
  EXPECT_DOUBLE_EQ(*found.ratio_median, 1.5);
  EXPECT_DOUBLE_EQ(*additivity({1, 2}, {3, 8}).ratio_median, 3.5);
}

TEST(Refine, AdditivityOfTooLittle) {
  const Additivity one = additivity({2}, {3});
  EXPECT_FALSE(one.spearman || one.slope);
  EXPECT_DOUBLE_EQ(*one.ratio_median, 1.5);
  const Additivity equal = additivity({2, 2}, {3, 4});
  EXPECT_FALSE(equal.spearman || equal.slope);
  EXPECT_FALSE(additivity({0}, {3}).ratio_median);
}

}  // namespace
}  // namespace bitalloc
