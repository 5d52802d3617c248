#include "solver/test_problems.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace bitalloc::test {
namespace {

std::int64_t quarters(const Problem& problem, std::size_t site, int candidate) {
  return std::llround(problem.bits[site][candidate] * 4 * problem.width[site]);
}

std::int64_t quarter_budget(const Problem& problem, double budget) {
  long double width = 0;
  for (const double w : problem.width) {
    width += w;
  }
  return static_cast<std::int64_t>(std::floor(budget * 4 * width * (1 + 1e-10L)));
}

double lowest(const std::vector<double>& row) { return *std::min_element(row.begin(), row.end()); }

// Steps to the next assignment in lexicographic order; false after the last.
bool advance(const Problem& problem, std::vector<int>* choice) {
  for (std::size_t i = choice->size(); i-- > 0;) {
    if (++(*choice)[i] < static_cast<int>(problem.bits[i].size())) {
      return true;
    }
    (*choice)[i] = 0;
  }
  return false;
}

}  // namespace

Problem random_problem(const Shape& shape, std::mt19937_64* random) {
  std::uniform_int_distribution<int> quarter(1, 64);
  std::uniform_int_distribution<int> width(1, 8);
  std::uniform_int_distribution<int> small(-1, 3);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0, 1);
  Problem problem;
  for (int i = 0; i < shape.sites; ++i) {
    std::vector<double> bits;
    std::vector<double> score;
    for (int j = 0; j < shape.candidates; ++j) {
      const bool repeat = j > 0 && uniform(*random) < 0.15;  // equal costs within a site
      bits.push_back(repeat ? bits.back() : quarter(*random) / 4.0);
      score.push_back(shape.scale * (shape.small_integers
                                         ? small(*random)
                                         : std::exp(-0.5 * bits.back() + normal(*random)) -
                                               (uniform(*random) < 0.1 ? 0.5 : 0.0)));
    }
    problem.bits.push_back(bits);
    problem.score.push_back(score);
    problem.width.push_back(shape.equal_widths ? 1024 : 64 * width(*random));
  }
  return problem;
}

double random_budget(const Problem& problem, std::mt19937_64* random) {
  std::vector<int> choice;
  for (const auto& row : problem.bits) {
    choice.push_back(static_cast<int>((*random)() % row.size()));
  }
  const double attained = effective_bits_of(problem, choice);
  switch ((*random)() % 4) {
    case 0:
      return attained * 0.98;
    case 1:
      return attained * 1.01;
    default:
      return attained;
  }
}

Best enumerate(const Problem& problem, double budget) {
  const std::int64_t capacity = quarter_budget(problem, budget);
  long double free_optimum = 0;
  long double noise = 0;
  for (const auto& row : problem.score) {
    free_optimum += lowest(row);
    noise += std::fabs(lowest(row)) * 0x1p-51L;
  }
  Best best;
  long double limit = std::numeric_limits<long double>::infinity();
  // First the lowest objective, then the fewest bits among its ties, first in order.
  for (const bool second_pass : {false, true}) {
    std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
    std::vector<int> choice(problem.num_sites(), 0);
    do {
      std::int64_t weight = 0;
      long double sum = 0;
      for (std::size_t i = 0; i < choice.size(); ++i) {
        weight += quarters(problem, i, choice[i]);
        sum += problem.score[i][choice[i]];
      }
      if (weight > capacity) {
        continue;
      }
      best.feasible = true;
      if (!second_pass) {
        limit = std::min(limit, sum);
      } else if (sum <= limit && weight < fewest) {
        fewest = weight;
        best.choice = choice;
      }
    } while (advance(problem, &choice));
    best.objective = second_pass ? best.objective : static_cast<double>(limit);
    limit += 1e-12L * (limit - free_optimum) + noise;
  }
  return best;
}

void for_each_assignment(const Problem& problem,
                         const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> choice(problem.num_sites(), 0);
  do {
    visit(choice);
  } while (advance(problem, &choice));
}

std::vector<std::vector<int>> enumerate_neighbours(const Problem& problem,
                                                   const Constraints& constraints,
                                                   const std::vector<int>& choice) {
  std::vector<int> unit(choice.size());  // smallest site that must agree with this one
  std::iota(unit.begin(), unit.end(), 0);
  for (std::size_t pass = 0; pass < choice.size(); ++pass) {
    for (const Group& group : constraints.groups) {
      for (const int a : group.sites) {
        for (const int b : group.sites) unit[a] = std::min(unit[a], unit[b]);
      }
    }
  }
  std::vector<std::vector<int>> found;
  for_each_assignment(problem, [&](const std::vector<int>& other) {
    std::map<int, double> bits;  // more than now, of every unit that differs
    for (std::size_t i = 0; i < choice.size(); ++i) {
      if (other[i] == choice[i]) continue;
      bits[unit[i]] += problem.width[i] * (problem.bits[i][other[i]] - problem.bits[i][choice[i]]);
    }
    const bool swap = bits.size() == 2 && bits.begin()->second * bits.rbegin()->second <= 0;
    if (bits.size() != 1 && !swap) return;
    if (violations(problem, constraints, other).empty()) found.push_back(other);
  });
  return found;
}

double capacity_program(const Problem& problem, double budget) {
  const long double infinity = std::numeric_limits<long double>::infinity();
  const std::int64_t capacity = quarter_budget(problem, budget) / 64;  // widths are multiples of 64
  std::vector<long double> best(static_cast<std::size_t>(capacity) + 1, 0);
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    std::vector<long double> next(best.size(), infinity);
    for (std::size_t j = 0; j < problem.bits[i].size(); ++j) {
      const std::int64_t weight = quarters(problem, i, static_cast<int>(j)) / 64;
      for (std::int64_t c = weight; c <= capacity; ++c) {
        next[c] = std::min(next[c], best[c - weight] + problem.score[i][j]);
      }
    }
    best = std::move(next);
  }
  return static_cast<double>(best.back());
}

}  // namespace bitalloc::test
