// A whole service in virtual time: coordinators, Redis, workers, clients, a network between them,
// a supervisor that starts again what has ended, and mishaps that come by chance. Everything
// follows from the options: the same options give the same run, step by step.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/redis_server.h"
#include "tests/sim/sim_clients.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_worker.h"

namespace bitalloc::sim {

// What may happen once in a while, besides the faults of messages and units.
enum class Mishap {
  kCoordinatorCrash,
  kCoordinatorFreeze,
  kCoordinatorStop,
  kCoordinatorClock,
  kSecondCoordinator,  // waits for the lock
  kTakeOver,           // takes it
  kRedisCrash,
  kRedisFreeze,
  kRedisReset,
  kRedisClock,
  kWorkerCrash,
  kWorkerFreeze,
  kWorkerClock,
  kWorkerDrain,
  kPartition,
  kCount,
};

struct WorldOptions {
  uint64_t seed = 1;
  Mutant mutant = Mutant::kNone;
  bool trace = false;

  std::vector<Script> scripts;
  int64_t workers = 3;
  WorkerOptions worker;
  std::string wrong_model;  // of one worker in four while faults are on; empty: none
  CoordinatorOptions coordinator;
  TimeMs faults_ms = 60'000;       // how long things go wrong
  TimeMs mishap_every_ms = 2'000;  // in the mean; 0: none
  std::vector<Mishap> mishaps;     // which
  Faults faults;
  TimeMs limit_ms = 3'600'000;  // of virtual time: everything must have ended
};

// The world of a seed: which searches, orders and faults there are is chance, too. With
// `faults` false: the same searches and orders, and nothing goes wrong.
WorldOptions random_world(uint64_t seed, bool faults = true);
// 20 searches of `units` units together on `workers` workers, with faults.
WorldOptions large_world(uint64_t seed, int64_t workers, int64_t units);

struct Outcome {
  std::vector<Violation> violations;
  std::vector<std::string> trace;
  std::map<std::string, std::string> tables;  // packed results of each finished search
  uint64_t steps = 0;
  TimeMs virtual_ms = 0;
  int64_t units = 0;
  int64_t grants = 0;
  int64_t mishaps = 0;
  int64_t stale_refused = 0;
  int64_t conflicts = 0;
};

Outcome simulate(const WorldOptions& options);

// The seed, the step, what was violated, and the last lines of the trace (the run is repeated with
// one). Empty when nothing was violated.
std::string failure_report(const WorldOptions& options, const Outcome& outcome,
                           const std::string& replay);

}  // namespace bitalloc::sim
