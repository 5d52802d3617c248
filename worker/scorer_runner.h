// Runs units with LibTorch: loads the model a unit names, checks that it is that model, scores.
#pragma once

#include <memory>
#include <string>

#include "common/model_roots.h"
#include "worker/memory_plan.h"
#include "worker/unit_runner.h"

namespace bitalloc {

class Collective;

struct ScorerRunnerOptions {
  std::string device = "auto";  // "cpu", "cuda", "cuda:N"; auto: a GPU when there is one
  int threads = 0;              // 0: as many as there are cores
  Collective* group = nullptr;  // of ranks that run the same units, each on its shard; borrowed
  ModelRoots model_roots;       // where the models of units may be
  MemoryOptions memory;
};

// The device that `asked` means: "cpu", "cuda" or "cuda:N". Ranks of a group that ask for "cuda"
// get a GPU of their own each, in the order of ranks (a host has as many ranks as GPUs). Errors:
// kInvalidArgument for a name that is none, kUnsupported where there is no GPU.
Result<std::string> choose_device(const std::string& asked, int rank, int ranks);

// Keeps the last model loaded, so that units of one search load it once.
// Errors: kUnsupported for a device that is not there.
Result<std::unique_ptr<UnitRunner>> make_scorer_runner(ScorerRunnerOptions options);

}  // namespace bitalloc
