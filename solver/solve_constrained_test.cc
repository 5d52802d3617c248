// solve() within constraints, against enumeration that knows nothing of the solver: every
// constraint is evaluated here anew on every assignment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "solver/instance.h"
#include "solver/solve.h"
#include "solver/solve_file.h"
#include "solver/test_problems.h"

namespace bitalloc {
namespace {

using ::testing::HasSubstr;

using Random = std::mt19937_64;

bool within(double sum, double lower, double upper, double noise) {
  const double tolerance = 1e-10;
  return sum <= upper + tolerance * std::fabs(upper) + noise &&
         sum >= lower - tolerance * std::fabs(lower) - noise;
}

// The definitions of constraints.h, once more.
bool obeys(const Problem& problem, const Constraints& constraints, const std::vector<int>& choice) {
  const std::size_t sites = choice.size();
  if (constraints.effective_bits) {
    double bits = 0;
    double width = 0;
    for (std::size_t i = 0; i < sites; ++i) {
      bits += problem.width[i] * problem.bits[i][choice[i]];
      width += problem.width[i];
    }
    if (!within(bits, -INFINITY, *constraints.effective_bits * width, 0)) return false;
  }
  for (const Row& row : constraints.rows) {
    double sum = 0;
    double noise = 0;
    for (std::size_t i = 0; i < sites; ++i) {
      sum += row.coefficient[i][choice[i]];
      double largest = 0;
      for (const double c : row.coefficient[i]) largest = std::max(largest, std::fabs(c));
      noise += 1e-15 * largest;
    }
    if (sum > row.upper && !within(sum, -INFINITY, row.upper, noise)) return false;
    if (sum < row.lower && !within(sum, row.lower, INFINITY, noise)) return false;
  }
  for (const Pin& pin : constraints.pins) {
    if (choice[pin.site] != pin.candidate) return false;
  }
  for (const Exclusion& exclusion : constraints.exclusions) {
    if (choice[exclusion.site] == exclusion.candidate) return false;
  }
  for (const Group& group : constraints.groups) {
    for (const int site : group.sites) {
      if (choice[site] != choice[group.sites[0]]) return false;
    }
  }
  for (const PairRule& pair : constraints.pairs) {
    const std::pair<int, int> taken(choice[pair.first], choice[pair.second]);
    if (std::count(pair.allowed.begin(), pair.allowed.end(), taken) == 0) return false;
  }
  if (constraints.distinct) {
    std::set<std::string> labels;
    for (std::size_t i = 0; i < sites; ++i) {
      labels.insert(constraints.distinct->labels[i][choice[i]]);
    }
    if (static_cast<int>(labels.size()) > constraints.distinct->limit) return false;
  }
  if (constraints.changes) {
    int changes = 0;
    for (std::size_t i = 0; i < sites; ++i) {
      const int deployed = constraints.changes->deployed[i];
      changes += deployed >= 0 && deployed != choice[i] ? 1 : 0;
    }
    if (changes > constraints.changes->limit) return false;
  }
  return true;
}

bool advance(const Problem& problem, std::vector<int>* choice) {
  for (std::size_t i = choice->size(); i-- > 0;) {
    if (++(*choice)[i] < static_cast<int>(problem.bits[i].size())) return true;
    (*choice)[i] = 0;
  }
  return false;
}

struct Best {
  bool feasible = false;
  long double objective = INFINITY;
};

Best enumerate(const Problem& problem, const Constraints& constraints) {
  Best best;
  std::vector<int> choice(problem.num_sites(), 0);
  do {
    if (!obeys(problem, constraints, choice)) continue;
    long double sum = 0;
    for (std::size_t i = 0; i < choice.size(); ++i) sum += problem.score[i][choice[i]];
    best.feasible = true;
    best.objective = std::min(best.objective, sum);
  } while (advance(problem, &choice));
  return best;
}

std::vector<int> any_choice(const Problem& problem, Random* random) {
  std::vector<int> choice;
  for (const auto& bits : problem.bits) {
    choice.push_back(static_cast<int>((*random)() % bits.size()));
  }
  return choice;
}

// A row over random coefficients of one size, its bounds at or beside what `base` (and, for a
// second bound, some assignment) has.
Row random_row(const Problem& problem, const std::vector<int>& base, Random* random) {
  const double scale = std::pow(10.0, static_cast<double>((*random)() % 25) - 12);
  const bool whole = (*random)() % 2 == 0;
  std::uniform_real_distribution<double> real(-1, 4);
  Row row;
  for (const auto& bits : problem.bits) {
    auto& coefficients = row.coefficient.emplace_back();
    for (std::size_t j = 0; j < bits.size(); ++j) {
      coefficients.push_back(whole ? static_cast<double>((*random)() % 6) *
                                         (scale > 1 ? std::floor(scale) : 1)
                                   : scale * real(*random));
    }
  }
  const auto sum_of = [&](const std::vector<int>& choice) {
    double sum = 0;
    for (std::size_t i = 0; i < choice.size(); ++i) sum += row.coefficient[i][choice[i]];
    return sum;
  };
  const double a = sum_of(base);
  const double b = sum_of(any_choice(problem, random));
  switch ((*random)() % 4) {
    case 0:
      row.lower = a;
      break;
    case 1:
      row.lower = std::min(a, b);
      row.upper = std::max(a, b);
      break;
    default:
      row.upper = a;
  }
  return row;
}

PairRule random_pair(const Problem& problem, int a, int b, const std::vector<int>& base,
                     Random* random) {
  PairRule pair{"", a, b, {}};
  for (int j = 0; j < static_cast<int>(problem.bits[a].size()); ++j) {
    for (int k = 0; k < static_cast<int>(problem.bits[b].size()); ++k) {
      if ((*random)() % 2 == 0 || (base[a] == j && base[b] == k)) pair.allowed.emplace_back(j, k);
    }
  }
  return pair;
}

struct Kinds {
  const char* name;
  int rows = 0;
  bool fixed = false;  // pins and exclusions
  bool tied = false;   // groups and pairs
  bool distinct = false;
  bool changes = false;
  double scale = 1;
  bool small_integers = false;
};

// Constraints that in most cases some assignment (`base`) obeys, each with little room around it.
Constraints random_constraints(const Problem& problem, const Kinds& kinds, Random* random) {
  const auto one_in = [&](int n) { return (*random)() % n == 0; };
  const auto any_site = [&] { return static_cast<int>((*random)() % problem.num_sites()); };
  std::vector<int> base = any_choice(problem, random);
  Constraints constraints;
  if (kinds.tied && one_in(2)) {
    constraints.groups.push_back({"", {any_site(), any_site()}});
    base[constraints.groups[0].sites[1]] = base[constraints.groups[0].sites[0]];
  }
  // Now and then the others are about another assignment: a conflict, often.
  if (one_in(6)) base = any_choice(problem, random);
  if (!one_in(4)) constraints.effective_bits = effective_bits_of(problem, base);
  if (one_in(6)) constraints.effective_bits = test::random_budget(problem, random);
  for (int k = 0; k < kinds.rows; ++k) {
    constraints.rows.push_back(random_row(problem, base, random));
  }
  if (kinds.fixed) {
    const int site = any_site();
    if (one_in(3)) constraints.pins.push_back({"", site, base[site]});
    for (int k = 0; k < 3; ++k) {
      const int other = any_site();
      const int candidate = static_cast<int>((*random)() % problem.bits[other].size());
      if (candidate != base[other] || one_in(8)) {
        constraints.exclusions.push_back({"", other, candidate});
      }
    }
  }
  if (kinds.tied) {
    for (int k = 0; k < 2; ++k) {
      const int first = any_site();
      const int second = any_site();
      if (first != second) {
        constraints.pairs.push_back(random_pair(problem, first, second, base, random));
      }
    }
  }
  if (kinds.distinct) {
    DistinctLimit distinct;
    distinct.limit = 1 + static_cast<int>((*random)() % 3);
    for (std::size_t i = 0; i < problem.num_sites(); ++i) {
      auto& labels = distinct.labels.emplace_back();
      for (std::size_t j = 0; j < problem.bits[i].size(); ++j) {
        labels.push_back(std::string(1, static_cast<char>('a' + (*random)() % 5)));
      }
      if (!one_in(8)) labels[base[i]] = i % 2 == 0 || distinct.limit == 1 ? "a" : "b";
    }
    constraints.distinct = distinct;
  }
  if (kinds.changes) {
    ChangeLimit changes{"", static_cast<int>((*random)() % 3), base};
    for (int k = 0; k < changes.limit + (one_in(8) ? 1 : 0); ++k) {
      const int site = any_site();
      changes.deployed[site] = static_cast<int>((*random)() % problem.bits[site].size());
    }
    if (one_in(3)) changes.deployed[any_site()] = -1;
    constraints.changes = changes;
  }
  return constraints;
}

class Constrained : public ::testing::TestWithParam<Kinds> {};

void expect_matches_enumeration(const Problem& problem, const Constraints& constraints,
                                const Best& best, const SolveOptions& options) {
  const auto solution = solve(problem, constraints, options);
  if (!best.feasible) {
    ASSERT_FALSE(solution.ok());
    ASSERT_EQ(solution.error().code, ErrorCode::kInfeasible) << solution.error().message;
    return;
  }
  ASSERT_TRUE(solution.ok()) << solution.error().message;
  ASSERT_TRUE(obeys(problem, constraints, solution->choice));
  ASSERT_TRUE(solution->proven_optimal);
  ASSERT_NE(solution->cbc, CbcVerdict::kDisagreed);
  double magnitude = std::fabs(static_cast<double>(best.objective));
  for (const auto& row : problem.score) {
    magnitude += std::fabs(*std::min_element(row.begin(), row.end()));
  }
  const double excess = solution->objective - static_cast<double>(best.objective);
  // Where CBC decides, to 1e-9 of the gap, which is no larger than the objective's own size here.
  const double tolerance = options.max_points > 1 ? 4e-12 : 4e-9;
  ASSERT_TRUE(std::fabs(excess) <= tolerance * magnitude) << excess;
  ASSERT_LE(solution->lower_bound, solution->objective);
}

struct Counts {
  int feasible = 0;
  int infeasible = 0;
};

Counts try_seeds(const Kinds& kinds, std::uint64_t count, const SolveOptions& options) {
  Counts counts;
  for (std::uint64_t seed = 0; seed < count && !::testing::Test::HasFatalFailure(); ++seed) {
    Random random(seed);
    test::Shape shape;
    shape.sites = 1 + static_cast<int>(random() % 5);
    shape.candidates = 1 + static_cast<int>(random() % 4);
    shape.scale = kinds.scale;
    shape.small_integers = kinds.small_integers;
    const Problem problem = test::random_problem(shape, &random);
    const Constraints constraints = random_constraints(problem, kinds, &random);
    SCOPED_TRACE(std::string(kinds.name) + " seed " + std::to_string(seed) + "\n" +
                 instance_to_json(problem, constraints));
    const Best best = enumerate(problem, constraints);
    expect_matches_enumeration(problem, constraints, best, options);
    ++(best.feasible ? counts.feasible : counts.infeasible);
  }
  return counts;
}

TEST_P(Constrained, EverySmallProblemIsSolvedAsByTryingAll) {
  const Counts counts = try_seeds(GetParam(), 2000, {});
  EXPECT_GT(counts.feasible, 1000);
  EXPECT_GT(counts.infeasible, 20);
}

// No room for a dynamic program of several rows: CBC decides them.
TEST_P(Constrained, SoIsItByCbc) {
  const Counts counts = try_seeds(GetParam(), 300, {.max_points = 1});
  EXPECT_GT(counts.feasible, 150);
}

TEST_P(Constrained, CbcAgreesWithTheDynamicProgram) {
  const Counts counts = try_seeds(GetParam(), 300, {.cbc_check_seconds = 5});
  EXPECT_GT(counts.feasible, 150);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Constrained,
                         ::testing::Values(Kinds{"one_row", 1}, Kinds{"three_rows", 3},
                                           Kinds{.name = "fixed", .fixed = true},
                                           Kinds{.name = "tied", .tied = true},
                                           Kinds{.name = "distinct", .distinct = true},
                                           Kinds{.name = "changes", .changes = true},
                                           Kinds{"everything", 2, true, true, true, true},
                                           Kinds{"tiny", 2, true, false, true, true, 1e-12},
                                           Kinds{"huge", 2, false, true, false, true, 1e12},
                                           Kinds{"zero", 2, false, false, true, true, 0},
                                           Kinds{"equal", 2, false, true, true, false, 0.1, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// An independent dynamic program, [changes][quarter-bit·64 elements]: the lowest score within a
// budget and a number of changes from a deployed assignment.
double change_program(const Problem& problem, double budget, const ChangeLimit& changes) {
  long double width = 0;
  for (const double w : problem.width) width += w;
  const auto capacity =
      static_cast<std::size_t>(std::floor(budget * 4 * width * (1 + 1e-10L) / 64));
  using Cells = std::vector<std::vector<long double>>;
  const Cells none(changes.limit + 1, std::vector<long double>(capacity + 1, INFINITY));
  Cells best = none;
  for (auto& row : best) std::fill(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    Cells next = none;
    for (int j = 0; j < static_cast<int>(problem.bits[i].size()); ++j) {
      const auto weight =
          static_cast<std::size_t>(std::llround(problem.bits[i][j] * 4 * problem.width[i] / 64));
      const int changed = changes.deployed[i] != -1 && changes.deployed[i] != j ? 1 : 0;
      for (int n = changed; n <= changes.limit; ++n) {
        for (std::size_t c = weight; c <= capacity; ++c) {
          next[n][c] = std::min(next[n][c], best[n - changed][c - weight] + problem.score[i][j]);
        }
      }
    }
    best = std::move(next);
  }
  return static_cast<double>(best.back().back());
}

TEST(SolveConstrained, MatchesAProgramOverCapacitiesAndChanges) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const Problem problem =
        test::random_problem({24, 4, seed % 2 == 0 ? 1e-9 : 1.0, seed % 3 == 0, false}, &random);
    Constraints constraints;
    constraints.changes =
        ChangeLimit{"", static_cast<int>(random() % 12), any_choice(problem, &random)};
    // Enough for the deployed assignment, or a little less: then changes must save bits.
    constraints.effective_bits = effective_bits_of(problem, constraints.changes->deployed) *
                                 (random() % 3 == 0 ? 0.97 : 1.02);
    const double expected =
        change_program(problem, *constraints.effective_bits, *constraints.changes);
    const auto solution = solve(problem, constraints);
    ASSERT_EQ(solution.ok(), std::isfinite(expected)) << "seed " << seed;
    if (!solution.ok()) continue;
    EXPECT_TRUE(solution->proven_optimal) << "seed " << seed;
    EXPECT_TRUE(obeys(problem, constraints, solution->choice)) << "seed " << seed;
    const double magnitude = std::fabs(expected) + 24 * (seed % 2 == 0 ? 1e-9 : 1.0);
    EXPECT_NEAR(solution->objective, expected, 1e-11 * magnitude) << "seed " << seed;
  }
}

TEST(SolveConstrained, EveryScaleOfScoresGivesTheSameChoice) {
  const Kinds kinds{"everything", 2, true, true, true, true};
  int solved = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const Problem problem = test::random_problem({8, 4, 1, seed % 2 == 0, false}, &random);
    const Constraints constraints = random_constraints(problem, kinds, &random);
    const auto expected = solve(problem, constraints);
    for (const double scale : {1e-12, 1e-6, 0.1, 1e6}) {
      Problem scaled = problem;
      for (auto& row : scaled.score) {
        for (double& score : row) score *= scale;
      }
      const auto solution = solve(scaled, constraints);
      ASSERT_EQ(solution.ok(), expected.ok()) << "seed " << seed << " scale " << scale;
      if (!solution.ok()) continue;
      EXPECT_EQ(solution->choice, expected->choice) << "seed " << seed << " scale " << scale;
      ++solved;
    }
  }
  EXPECT_GT(solved, 300);
}

// Constraints that come down to one row keep solve()'s rule of ties.
TEST(SolveConstrained, ABudgetAsAConstraintIsTheBudget) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const Problem problem = test::random_problem({12, 4, 1, seed % 2 == 0, false}, &random);
    Constraints constraints;
    constraints.effective_bits = test::random_budget(problem, &random);
    const auto expected = solve(problem, *constraints.effective_bits);
    const auto solution = solve(problem, constraints);
    ASSERT_EQ(solution.ok(), expected.ok()) << "seed " << seed;
    if (!expected.ok()) continue;
    EXPECT_EQ(solution->choice, expected->choice) << "seed " << seed;
  }
}

// 24 sites in a chain of K ≥ V rules: more joint options than merging allows, so CBC has clauses to
// keep. Each rule says: not more candidates up than one step from site to site.
TEST(SolveConstrained, AChainOfPairsIsKept) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const Problem problem = test::random_problem({24, 4, 1, false, true}, &random);
    Constraints constraints;
    for (int i = 0; i + 1 < 24; ++i) {
      PairRule pair{"", i, i + 1, {}};
      for (int j = 0; j < 4; ++j) {
        for (int k = 0; k <= std::min(j + 1, 3); ++k) pair.allowed.emplace_back(j, k);
      }
      constraints.pairs.push_back(pair);
    }
    const auto solution = solve(problem, constraints);
    ASSERT_TRUE(solution.ok()) << solution.error().message;
    EXPECT_TRUE(solution->proven_optimal);
    EXPECT_TRUE(obeys(problem, constraints, solution->choice));
    // The independent answer: a program over sites and candidates.
    std::vector<long double> best(problem.score[0].begin(), problem.score[0].end());
    for (int i = 1; i < 24; ++i) {
      std::vector<long double> next(4, INFINITY);
      for (int j = 0; j < 4; ++j) {
        for (int k = 0; k <= std::min(j + 1, 3); ++k) {
          next[k] = std::min(next[k], best[j] + problem.score[i][k]);
        }
      }
      best = next;
    }
    EXPECT_NEAR(solution->objective,
                static_cast<double>(*std::min_element(best.begin(), best.end())), 1e-8)
        << "seed " << seed;
  }
}

struct BadConstraint {
  const char* text;  // beside a problem of two sites with two candidates
  const char* field;
};

class BadConstraints : public ::testing::TestWithParam<BadConstraint> {};

TEST_P(BadConstraints, AreRefusedByName) {
  const std::string head =
      R"({"bits": [[4, 8], [4, 8]], "width": [1, 1], "score": [[1, 0], [1, 0]],)";
  const auto file = parse_solve_file(head + GetParam().text + "}");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file.error().field, GetParam().field) << file.error().message;
  EXPECT_THAT(file.error().message, HasSubstr(GetParam().field));
}

INSTANTIATE_TEST_SUITE_P(
    Inputs, BadConstraints,
    ::testing::Values(
        BadConstraint{R"("rows": 5)", "rows"}, BadConstraint{R"("rows": [5])", "rows[0]"},
        BadConstraint{R"("rows": [{"upper": 1}])", "rows[0].coefficient"},
        BadConstraint{R"("rows": [{"coefficient": [[1, 2]], "upper": 1}])", "rows[0].coefficient"},
        BadConstraint{R"("rows": [{"coefficient": [[1, 2], [3]], "upper": 1}])",
                      "rows[0].coefficient[1]"},
        BadConstraint{R"("rows": [{"coefficient": [[1, 2], [3, null]], "upper": 1}])",
                      "rows[0].coefficient[1][1]"},
        BadConstraint{R"("rows": [{"coefficient": [[1, 2], [3, 1e300]], "upper": 1}])",
                      "rows[0].coefficient[1][1]"},
        BadConstraint{R"("rows": [{"coefficient": [[1, 2], [3, 4]]}])", "rows[0]"},
        BadConstraint{R"("rows": [{"coefficient": [[1, 2], [3, 4]], "upper": "x"}])",
                      "rows[0].upper"},
        BadConstraint{R"("pins": [{"site": 2, "candidate": 0}])", "pins[0].site"},
        BadConstraint{R"("pins": [{"site": 0, "candidate": -1}])", "pins[0].candidate"},
        BadConstraint{R"("pins": [{"site": 0.5, "candidate": 0}])", "pins[0].site"},
        BadConstraint{R"("exclude": [{"site": 0}])", "exclude[0].candidate"},
        BadConstraint{R"("groups": [{"sites": []}])", "groups[0].sites"},
        BadConstraint{R"("groups": [{"sites": [0, 7]}])", "groups[0].sites[1]"},
        BadConstraint{R"("pairs": [{"sites": [0, 0], "allowed": []}])", "pairs[0].sites"},
        BadConstraint{R"("pairs": [{"sites": [0, 1], "allowed": [[0, 2]]}])",
                      "pairs[0].allowed[0][1]"},
        BadConstraint{R"("pairs": [{"sites": [0, 1], "allowed": [[0]]}])", "pairs[0].allowed[0]"},
        BadConstraint{R"("max_distinct": 1)", "labels"},
        BadConstraint{R"("max_distinct": 0, "labels": [["a", "b"], ["a", "b"]])", "max_distinct"},
        BadConstraint{R"("max_distinct": 1, "labels": [["a", 3], ["a", "b"]])", "labels[0][1]"},
        BadConstraint{R"("deployed": [0, 0])", "max_changes"},
        BadConstraint{R"("max_changes": -1, "deployed": [0, 0])", "max_changes"},
        BadConstraint{R"("max_changes": 1, "deployed": [0, 2])", "deployed[1]"}));

// What is logged of a disagreement can be solved again: out as JSON and in again, the same answer.
TEST(SolveConstrained, AnInstanceSurvivesItsJson) {
  const Kinds kinds{"everything", 2, true, true, true, true};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    const Problem problem = test::random_problem({5, 4, 1, false, false}, &random);
    const Constraints constraints = random_constraints(problem, kinds, &random);
    const auto file = parse_solve_file(instance_to_json(problem, constraints));
    ASSERT_TRUE(file.ok()) << file.error().message;
    const auto expected = solve(problem, constraints);
    const auto solutions = solve_budgets(*file);
    ASSERT_EQ(solutions.ok(), expected.ok());
    if (!expected.ok()) continue;
    EXPECT_EQ(solutions->at(0).choice, expected->choice);
  }
}

}  // namespace
}  // namespace bitalloc
