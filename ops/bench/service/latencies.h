// Times of many events, and their quantiles.
//
// Thread rule: any thread may add, any thread may take.
#pragma once

#include <mutex>
#include <vector>

#include "common/json.h"

namespace bitalloc::bench {

class Latencies {
 public:
  void add(double ms);
  // {"count", "p50_ms", "p99_ms", "max_ms"} of what was added since the last take().
  Json take();

 private:
  std::mutex mutex_;
  std::vector<float> values_;  // guarded
};

// The same of a list.
Json quantiles(std::vector<float> values);

}  // namespace bitalloc::bench
