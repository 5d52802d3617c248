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

int64_t metrics_per_sequence(const SearchSpec& spec) {
  return spec.kind == JobKind::kSearch ? kSearchMetrics : kValidationMetrics;
}

}  // namespace bitalloc
