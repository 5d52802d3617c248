// The core: what reduced-cost fixing left open, as a binary program for CBC and back.
//
// Around a multiplier λ every assignment scores L(λ) + Σ reduced cost + λ·(unused capacity). CBC
// gets the last two terms only, scaled so that the gap in question is kCoreScale: its absolute
// tolerances then are a billionth of the gap, whatever the size of the scores.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "solver/cbc.h"
#include "solver/relaxation.h"

namespace bitalloc {

inline constexpr double kCoreScale = 1000;

struct Core {
  BinaryProgram program;
  std::vector<std::vector<int>> columns;  // [site][item]: its column, -1 when the site has one item
};

// `sites` as fix_by_reduced_cost() left them, none empty; `gap` > 0 in nats: the cost that becomes
// kCoreScale. Without a column when every site is decided.
Core make_core(const Sites& sites, std::int64_t capacity, const Relaxation& relaxation, double gap);

// picked: [site] index into the site's items → values of the columns, for a start.
std::vector<double> to_columns(const Core& core, const Sites& sites, std::int64_t capacity,
                               const std::vector<int>& picked);

// The inverse; nothing when x does not pick one item a site or exceeds the capacity (in integers).
std::optional<std::vector<int>> from_columns(const Core& core, const Sites& sites,
                                             std::int64_t capacity, const std::vector<double>& x);

}  // namespace bitalloc
