#include "common/ratio.h"

#include <cmath>
#include <numeric>

#include "common/status.h"

namespace bitalloc {

Ratio ratio(std::span<const double> numerators, std::span<const double> denominators) {
  BA_CHECK(numerators.size() == denominators.size(), "as many denominators as numerators");
  const double total = std::accumulate(denominators.begin(), denominators.end(), 0.0);
  Ratio result;
  if (total <= 0) return result;
  result.value = std::accumulate(numerators.begin(), numerators.end(), 0.0) / total;
  if (numerators.size() < 2) return result;
  double squares = 0;
  for (size_t i = 0; i < numerators.size(); ++i) {
    const double residual = numerators[i] - result.value * denominators[i];
    squares += residual * residual;
  }
  const double n = static_cast<double>(numerators.size());
  result.standard_error = std::sqrt(n / (n - 1) * squares) / total;
  return result;
}

}  // namespace bitalloc
