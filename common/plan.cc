#include "common/plan.h"

#include <algorithm>
#include <charconv>

namespace bitalloc {
namespace {

// Parses a whole decimal number off the front of `text`.
bool take_number(std::string_view& text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string unit_name(const UnitId& unit) {
  if (unit.kind == UnitKind::kCalibrate) return fmt::format("calibrate/{}", unit.batch.value);
  return fmt::format("score/{}/{}-{}", unit.batch.value, unit.row_begin, unit.row_end);
}

Result<UnitId> parse_unit_name(const std::string& name) {
  std::string_view rest = name;
  UnitId unit;
  if (take_prefix(rest, "calibrate/")) {
    unit.kind = UnitKind::kCalibrate;
    if (take_number(rest, unit.batch.value) && rest.empty()) return unit;
  } else if (take_prefix(rest, "score/") && take_number(rest, unit.batch.value) &&
             take_prefix(rest, "/") && take_number(rest, unit.row_begin) &&
             take_prefix(rest, "-") && take_number(rest, unit.row_end) && rest.empty() &&
             unit.row_begin < unit.row_end) {
    return unit;
  }
  return invalid_argument(fmt::format("'{}' is not the name of a unit", name), "unit");
}

std::vector<UnitId> plan_units(const SearchSpec& spec) {
  std::vector<UnitId> units;
  if (spec.needs_calibration()) {
    for (int64_t batch = 0; batch < spec.num_calibration_batches(); ++batch) {
      units.push_back({UnitKind::kCalibrate, BatchIndex(batch), 0, 0});
    }
  }
  for (int64_t batch = 0; batch < spec.num_batches(); ++batch) {
    for (int64_t end = spec.num_rows(); end > 0;) {
      const int64_t begin = (end - 1) / spec.sites_per_unit * spec.sites_per_unit;
      units.push_back({UnitKind::kScore, BatchIndex(batch), begin, end});
      end = begin;
    }
  }
  return units;
}

PlanLayout::PlanLayout(const SearchSpec& spec)
    : calibration_units_(spec.needs_calibration() ? spec.num_calibration_batches() : 0),
      batches_(spec.num_batches()),
      units_per_batch_((spec.num_rows() + spec.sites_per_unit - 1) / spec.sites_per_unit),
      rows_(spec.num_rows()),
      rows_per_unit_(spec.sites_per_unit) {}

std::optional<size_t> PlanLayout::slot(const UnitId& unit) const {
  const auto batch = static_cast<size_t>(unit.batch.value);  // a negative one is beyond every count
  if (unit.kind == UnitKind::kCalibrate) {
    const bool planned = batch < calibration_units_ && unit.row_begin == 0 && unit.row_end == 0;
    return planned ? std::optional(batch) : std::nullopt;
  }
  if (batch >= batches_ || unit.row_begin < 0 || unit.row_begin >= rows_ ||
      unit.row_begin % rows_per_unit_ != 0 ||
      unit.row_end != std::min(unit.row_begin + rows_per_unit_, rows_)) {
    return std::nullopt;
  }
  const auto from_first_row = static_cast<size_t>(unit.row_begin / rows_per_unit_);
  return calibration_units_ + batch * units_per_batch_ + (units_per_batch_ - 1 - from_first_row);
}

size_t PlanLayout::batch(size_t slot) const {
  if (slot < calibration_units_) return slot;
  return calibration_units_ + (slot - calibration_units_) / units_per_batch_;
}

size_t PlanLayout::batch_begin(size_t batch) const {
  if (batch <= calibration_units_) return batch;
  return calibration_units_ + (batch - calibration_units_) * units_per_batch_;
}

int64_t metrics_per_sequence(const SearchSpec& spec) {
  return spec.kind == JobKind::kSearch ? kSearchMetrics : kValidationMetrics;
}

}  // namespace bitalloc
