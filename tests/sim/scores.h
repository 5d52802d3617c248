// The scores of a simulated search in closed form: a number of (tokens, row, column, sequence) and
// nothing else, a multiple of 1/4096, so that sums are exact in any order and every count can be
// checked.
#pragma once

#include <string>
#include <vector>

#include "common/score_table.h"
#include "common/search_spec.h"

namespace bitalloc::sim {

// `rows` sites × 2 candidates × `sequences` sequences in batches of 2; `salt` makes the tokens, so
// another salt is another fingerprint with other scores.
SearchSpec make_spec(const std::string& salt, const std::string& model, int64_t rows,
                     int64_t sequences, bool calibrated);

UnitResult closed_result(const SearchSpec& spec, const UnitId& unit);
// [sites × 2], the largest over the calibration batches.
std::vector<float> closed_amax(const SearchSpec& spec);
// Σ over all sequences.
double closed_total(const SearchSpec& spec, int64_t row, int64_t column);

}  // namespace bitalloc::sim
