// Runs units with LibTorch: loads the model a unit names, checks that it is that model, scores.
#pragma once

#include <memory>
#include <string>

#include "common/model_roots.h"
#include "worker/memory_plan.h"
#include "worker/unit_runner.h"

namespace bitalloc {

struct ScorerRunnerOptions {
  std::string device = "auto";  // "cpu", "cuda", "cuda:N"; auto: a GPU when there is one
  int threads = 0;              // 0: as many as there are cores
  ModelRoots model_roots;       // where the models of units may be
  MemoryOptions memory;
};

// Keeps the last model loaded, so that units of one search load it once.
// Errors: kUnsupported for a device that is not there.
Result<std::unique_ptr<UnitRunner>> make_scorer_runner(ScorerRunnerOptions options);

}  // namespace bitalloc
