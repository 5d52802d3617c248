// The units of a search: which pieces of work there are. A pure function of the spec, so that a
// restarted coordinator plans the same ones and "pending" can be derived (all − results − leases).
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/search_spec.h"

namespace bitalloc {

enum class UnitKind {
  kCalibrate,  // one calibration batch → amax of every site's K and V
  kScore,      // one scoring batch × rows [row_begin, row_end) × all columns
};

// One unit. Rows are sites of a search, configurations of a validation.
struct UnitId {
  UnitKind kind = UnitKind::kScore;
  BatchIndex batch;
  int64_t row_begin = 0;  // 0 and 0 for kCalibrate
  int64_t row_end = 0;

  auto operator<=>(const UnitId&) const = default;
};

std::string unit_name(const UnitId& unit);  // "score/3/0-5", "calibrate/0"
Result<UnitId> parse_unit_name(const std::string& name);

// Calibration first, then batch by batch, within a batch from the last rows to the first (short
// suffixes first, so progress shows early). All units of one batch are adjacent.
std::vector<UnitId> plan_units(const SearchSpec& spec);

// Where the units stand in plan_units(spec), by arithmetic: no look-up table, however many there
// are.
class PlanLayout {
 public:
  explicit PlanLayout(const SearchSpec& spec);

  size_t num_units() const { return calibration_units_ + batches_ * units_per_batch_; }
  size_t num_calibration_units() const { return calibration_units_; }
  // Position in plan_units(spec); nothing for a unit that is not planned.
  std::optional<size_t> slot(const UnitId& unit) const;

  // Batches are counted through, those of the calibration first; a batch's units are adjacent.
  size_t num_batches() const { return calibration_units_ + batches_; }
  size_t batch(size_t slot) const;
  size_t batch_begin(size_t batch) const;  // its first slot; of num_batches(): num_units()

 private:
  size_t calibration_units_ = 0;
  size_t batches_ = 0;  // scoring batches
  size_t units_per_batch_ = 0;
  int64_t rows_ = 0;
  int64_t rows_per_unit_ = 1;
};

// Numbers a trial yields for one sequence. Of a search: Σ KL. Of a validation: Σ KL, Σ negative
// log-likelihood of the next token, the count of positions whose most likely token stays the same,
// and the count of positions that have a next token (mask 1 there and at the next position).
enum class Metric : int64_t { kKl = 0, kNll = 1, kTop1Agreements = 2, kNextTokens = 3 };
constexpr int64_t kSearchMetrics = 1;
constexpr int64_t kValidationMetrics = 4;
int64_t metrics_per_sequence(const SearchSpec& spec);

}  // namespace bitalloc
