// What a worker does with a unit: the seam between the ZeroMQ service and the numerics.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/score_table.h"
#include "common/search_spec.h"
#include "common/tokens.h"

namespace bitalloc {

// A unit as the coordinator sends it.
struct UnitWork {
  SearchId search;
  UnitId unit;
  Fence fence;
  SearchSpec spec;
  TokenSet tokens;          // of the unit's batch
  std::vector<float> amax;  // [sites × 2] of K and V; empty for kCalibrate
};

// Errors: kInvalidArgument naming what does not fit.
Result<UnitWork> unit_work_from_message(const Json& header, const std::vector<std::string>& blobs);

// Runs units, one at a time, on one thread.
class UnitRunner {
 public:
  virtual ~UnitRunner() = default;

  // Errors: kCancelled once `cancel` is set (within one layer's time), kMismatch when the model at
  // spec.model.path is not the one of the spec, others as the model's loader and scorer say.
  virtual Result<UnitResult> run(const UnitWork& work, const std::atomic<bool>& cancel) = 0;

  // For `hello`: {"device", "threads", "memory_bytes", "versions"}. Any thread.
  virtual Json capabilities() const = 0;

  // weights_sha256 of the models that are loaded now: a unit of one of them can begin at once. Any
  // thread.
  virtual std::vector<std::string> models() const { return {}; }
};

}  // namespace bitalloc
