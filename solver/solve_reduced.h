// The exact solve of a reduced problem: one row by single_row.h; several by dynamic programs in
// windows above the bound, CBC where they outgrow their limits; a limit on labels by branching on
// which labels may be taken.
//
// Thread-safe (CBC queues).
#pragma once

#include <vector>

#include "solver/reduced.h"
#include "solver/single_row.h"

namespace bitalloc {

struct Outcome {
  enum class Kind {
    kFound,
    kInfeasible,  // proven
    kUnknown,     // stopped before either
  };
  Kind kind = Kind::kUnknown;
  std::vector<int> choice;  // [sites of the problem] candidate, when found
  double upper_bound = 0;   // of `choice`: nats, as a sum of Option::score
  double lower_bound = 0;   // valid whether proven or not
  bool proven = false;
  CbcVerdict cbc = CbcVerdict::kNotAsked;
};

enum class Want {
  kBest,
  kAny,  // any assignment will do: whether there is one is the question
};

Result<Outcome> solve_reduced(const Reduced& reduced, const RowLimits& limits,
                              Want want = Want::kBest);

}  // namespace bitalloc
