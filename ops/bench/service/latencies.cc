#include "ops/bench/service/latencies.h"

#include <algorithm>
#include <utility>

namespace bitalloc::bench {

void Latencies::add(double ms) {
  const std::lock_guard lock(mutex_);
  values_.push_back(static_cast<float>(ms));
}

Json Latencies::take() {
  std::vector<float> values;
  {
    const std::lock_guard lock(mutex_);
    values.swap(values_);
  }
  return quantiles(std::move(values));
}

Json quantiles(std::vector<float> values) {
  if (values.empty()) return {{"count", 0}, {"p50_ms", 0}, {"p99_ms", 0}, {"max_ms", 0}};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {{"count", values.size()},
          {"p50_ms", at(0.5)},
          {"p99_ms", at(0.99)},
          {"max_ms", values.back()}};
}

}  // namespace bitalloc::bench
