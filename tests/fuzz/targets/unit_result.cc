// What a worker sends for one unit, as bytes: unpacked, checked against a spec, packed again. The
// first byte chooses the unit.
#include "common/score_table.h"

#include <array>

#include "tests/fuzz/target.h"

namespace bitalloc::fuzz {
namespace {

SearchSpec small_spec() {
  SearchSpec spec;
  spec.model = {"/m", "m", "llama", "w", "c", 3, 100};
  for (int64_t i = 0; i < 3; ++i) spec.sites.push_back({"layer" + std::to_string(i), i, 16, 16});
  spec.candidates = {*parse_candidate("fp8[scale=calibrated]"), *parse_candidate("nvfp4")};
  spec.sequences = 3;
  spec.length = 8;
  spec.batch_sequences = 2;
  spec.calibration_sequences = 1;
  spec.calibration_length = 8;
  return spec;
}

}  // namespace

bool accepts(std::string_view input) {
  static const SearchSpec spec = small_spec();
  static const std::array<UnitId, 4> units = {{{UnitKind::kCalibrate, {0}, 0, 0},
                                               {UnitKind::kScore, {0}, 0, 1},
                                               {UnitKind::kScore, {1}, 2, 3},
                                               {UnitKind::kScore, {9}, -1, 9}}};
  if (input.empty()) return false;
  const UnitId unit = units[static_cast<unsigned char>(input[0]) % units.size()];
  const auto result = unpack_unit_result(unit, input.substr(1));
  if (!result.ok()) return false;
  BA_CHECK(pack(*result) == input.substr(1), "other bytes than went in");
  if (!validate(*result, spec).ok()) return false;
  ScoreTable table(spec);
  if (!table.planned(unit)) return false;
  BA_CHECK(table.add(*result) == ScoreTable::Added::kNew, "first result is not new");
  BA_CHECK(table.add(*result) == ScoreTable::Added::kDuplicate, "equal result is not a duplicate");
  return true;
}

}  // namespace bitalloc::fuzz
