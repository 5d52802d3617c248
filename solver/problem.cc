#include "solver/problem.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace bitalloc {
namespace {

constexpr double kMaxScore = 1e200;  // sums and differences of scores stay finite

Status check_shape(const Problem& problem) {
  const std::size_t sites = problem.width.size();
  if (sites == 0) {
    return invalid_argument("the problem has no sites: width is empty", "width");
  }
  if (problem.bits.size() != sites) {
    return invalid_argument(
        fmt::format("bits has {} sites, width has {}", problem.bits.size(), sites), "bits");
  }
  if (problem.score.size() != sites) {
    return invalid_argument(
        fmt::format("score has {} sites, width has {}", problem.score.size(), sites), "score");
  }
  for (std::size_t i = 0; i < sites; ++i) {
    if (problem.bits[i].empty()) {
      const std::string field = fmt::format("bits[{}]", i);
      return invalid_argument(fmt::format("{}: site {} has no candidates", field, i), field);
    }
    if (problem.score[i].size() != problem.bits[i].size()) {
      const std::string field = fmt::format("score[{}]", i);
      return invalid_argument(fmt::format("{} has {} candidates, bits[{}] has {}", field,
                                          problem.score[i].size(), i, problem.bits[i].size()),
                              field);
    }
  }
  return {};
}

Status check_site(const Problem& problem, std::size_t i) {
  if (!std::isfinite(problem.width[i]) || problem.width[i] <= 0) {
    const std::string field = fmt::format("width[{}]", i);
    return invalid_argument(
        fmt::format("{} is {}: a site needs a finite number of elements above zero", field,
                    problem.width[i]),
        field);
  }
  for (std::size_t j = 0; j < problem.bits[i].size(); ++j) {
    const double bits = problem.bits[i][j];
    if (!std::isfinite(bits) || bits < 0) {
      const std::string field = fmt::format("bits[{}][{}]", i, j);
      return invalid_argument(fmt::format("{} is {} (site {}, candidate {}): bits must be finite "
                                          "and not negative",
                                          field, bits, i, j),
                              field);
    }
    if (!(std::fabs(problem.score[i][j]) <= kMaxScore)) {
      const std::string field = fmt::format("score[{}][{}]", i, j);
      return invalid_argument(
          fmt::format("{} is {} (site {}, candidate {}): scores must be finite, "
                      "at most {:g} from zero",
                      field, problem.score[i][j], i, j, kMaxScore),
          field);
    }
  }
  return {};
}

}  // namespace

Status validate(const Problem& problem) {
  BA_RETURN_IF_ERROR(check_shape(problem));
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    BA_RETURN_IF_ERROR(check_site(problem, i));
  }
  return {};
}

double effective_bits_of(const Problem& problem, const std::vector<int>& choice) {
  long double bits = 0;
  long double width = 0;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    bits += static_cast<long double>(problem.width[i]) * problem.bits[i][choice[i]];
    width += problem.width[i];
  }
  return static_cast<double>(bits / width);
}

double objective_of(const Problem& problem, const std::vector<int>& choice) {
  long double sum = 0;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    sum += problem.score[i][choice[i]];
  }
  return static_cast<double>(sum);
}

}  // namespace bitalloc
