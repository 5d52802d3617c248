// The search that the load bench submits over and over: the spec of a real 32-layer model with the
// default recipe's candidates, and results of the size that a worker would deliver for it.
#pragma once

#include <string>
#include <vector>

#include "common/score_table.h"
#include "common/search_spec.h"
#include "common/tokens.h"

namespace bitalloc::bench {

struct LoadSearch {
  SearchSpec spec;
  TokenSet tokens;
  std::vector<UnitId> units;       // the plan
  std::vector<std::string> blobs;  // of `submit`
};

// At least `units` units: 32 sites, 3 candidates, 4 sequences of 512 tokens a batch, 5 sites a
// unit.
LoadSearch realistic_search(int64_t units);

// Exactly `units` units (a multiple of 32) of the smallest kind: one site, one sequence of 8
// tokens.
LoadSearch smallest_units_search(int64_t units);

// pack(UnitResult) of a unit: valid, and another one for every unit.
std::string load_result(const SearchSpec& spec, const UnitId& unit);

}  // namespace bitalloc::bench
