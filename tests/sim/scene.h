// What every part of a simulated world shares: time, chance, the network, the faults that are on,
// and the audit.
#pragma once

#include <string>

#include "common/random.h"
#include "tests/sim/audit.h"
#include "tests/sim/mutant.h"
#include "tests/sim/network.h"
#include "tests/sim/timeline.h"

namespace bitalloc::sim {

// How often things go wrong by themselves: once in n; 0: never. Crashes and the like come from the
// world (world.h).
struct Faults {
  NetworkFaults network;
  int64_t late_pipeline = 0;  // to Redis: arrives after the coordinator has given it up
  int64_t failed_unit = 0;    // a worker says that another try may help
  int64_t broken_unit = 0;    // a worker says that no try will help
  int64_t wrong_result = 0;   // a worker computes another number
};

struct Scene {
  explicit Scene(uint64_t seed, Mutant which)
      : random(seed), network(timeline, random, faults.network), audit(timeline), mutant(which) {}

  Timeline timeline;
  Random random;
  Faults faults;
  Network network;
  Audit audit;
  const Mutant mutant;
};

}  // namespace bitalloc::sim
