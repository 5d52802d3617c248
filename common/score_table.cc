#include "common/score_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "common/ratio.h"

namespace bitalloc {
namespace {

template <typename T>
void append(std::string& bytes, const std::vector<T>& values) {
  const uint64_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

template <typename T>
bool take(std::string_view& bytes, std::vector<T>& values) {
  uint64_t count = 0;
  if (bytes.size() < sizeof count) return false;
  std::memcpy(&count, bytes.data(), sizeof count);
  bytes.remove_prefix(sizeof count);
  if (count > bytes.size() / sizeof(T)) return false;
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
  return true;
}

Status validate_calibration(const UnitResult& result, const SearchSpec& spec) {
  if (result.amax.size() != 2 * spec.sites.size() || !result.sums.empty() ||
      !result.tokens.empty()) {
    return invalid_argument("a calibration result must hold two numbers a site, and no more",
                            "amax");
  }
  for (size_t i = 0; i < result.amax.size(); ++i) {
    if (std::isfinite(result.amax[i]) && result.amax[i] >= 0) continue;
    return invalid_argument(fmt::format("amax of {} at {} is {}", i % 2 ? "V" : "K",
                                        spec.sites[i / 2].name, result.amax[i]),
                            "amax");
  }
  return {};
}

Status validate_scores(const UnitResult& result, const SearchSpec& spec) {
  const int64_t metrics = metrics_per_sequence(spec);
  const int64_t sequences = spec.batch_size(result.unit.batch);
  const int64_t rows = result.unit.row_end - result.unit.row_begin;
  if (std::ssize(result.tokens) != sequences || !result.amax.empty() ||
      std::ssize(result.sums) != rows * spec.num_columns() * metrics * sequences) {
    return invalid_argument(
        fmt::format("the result of {} has the wrong size", unit_name(result.unit)), "sums");
  }
  for (const int64_t count : result.tokens) {
    if (count < 0 || count > spec.length) {
      return invalid_argument(fmt::format("token count {} is out of range", count), "tokens");
    }
  }
  for (size_t i = 0; i < result.sums.size(); ++i) {
    if (result.sums[i] >= -1e-6) continue;  // false for NaN
    const int64_t trial = static_cast<int64_t>(i) / (metrics * sequences);
    return invalid_argument(fmt::format("score of row {}, column {} is {}",
                                        result.unit.row_begin + trial / spec.num_columns(),
                                        trial % spec.num_columns(), result.sums[i]),
                            "sums");
  }
  return {};
}

}  // namespace

Status validate(const UnitResult& result, const SearchSpec& spec) {
  const UnitId& unit = result.unit;
  if (unit.kind == UnitKind::kCalibrate) {
    if (unit.batch.value < 0 || unit.batch.value >= spec.num_calibration_batches()) {
      return invalid_argument("no such calibration batch", "unit");
    }
    return validate_calibration(result, spec);
  }
  if (unit.batch.value < 0 || unit.batch.value >= spec.num_batches() || unit.row_begin < 0 ||
      unit.row_begin >= unit.row_end || unit.row_end > spec.num_rows()) {
    return invalid_argument(fmt::format("the search has no unit {}", unit_name(unit)), "unit");
  }
  for (const double sum : result.sums) {
    if (!std::isfinite(sum)) {
      return invalid_argument(fmt::format("the result of {} is not finite", unit_name(unit)),
                              "sums");
    }
  }
  return validate_scores(result, spec);
}

std::string pack(const UnitResult& result) {
  std::string bytes;
  append(bytes, result.sums);
  append(bytes, result.tokens);
  append(bytes, result.amax);
  return bytes;
}

Result<UnitResult> unpack_unit_result(const UnitId& unit, std::string_view bytes) {
  UnitResult result;
  result.unit = unit;
  if (!take(bytes, result.sums) || !take(bytes, result.tokens) || !take(bytes, result.amax) ||
      !bytes.empty()) {
    return invalid_argument(fmt::format("the stored result of {} is damaged", unit_name(unit)),
                            "results");
  }
  return result;
}

ScoreTable::ScoreTable(const SearchSpec& spec)
    : spec_(spec),
      layout_(spec),
      units_(plan_units(spec)),
      blocks_(layout_.num_batches()),
      has_(units_.size()) {}

size_t ScoreTable::sequences_of(const UnitId& unit) const {
  return unit.kind == UnitKind::kScore ? static_cast<size_t>(spec_.batch_size(unit.batch)) : 0;
}

size_t ScoreTable::sums_of(const UnitId& unit) const {
  return static_cast<size_t>((unit.row_end - unit.row_begin) * spec_.num_columns() *
                             metrics_per_sequence(spec_)) *
         sequences_of(unit);
}

size_t ScoreTable::numbers_of(const UnitId& unit) const {
  if (unit.kind == UnitKind::kCalibrate) return 2 * spec_.sites.size();
  return sums_of(unit) + sequences_of(unit);
}

// The first unit of a batch may have fewer rows than the others, so the last one decides.
size_t ScoreTable::stride(size_t batch) const {
  return numbers_of(units_[layout_.batch_begin(batch + 1) - 1]);
}

const double* ScoreTable::numbers(size_t slot) const {
  const size_t batch = layout_.batch(slot);
  return blocks_[batch].get() + (slot - layout_.batch_begin(batch)) * stride(batch);
}

double* ScoreTable::numbers_to_write(size_t slot) {
  const size_t batch = layout_.batch(slot);
  const size_t begin = layout_.batch_begin(batch);
  Block& block = blocks_[batch];
  if (block == nullptr || block.use_count() > 1) {
    const size_t size = (layout_.batch_begin(batch + 1) - begin) * stride(batch);
    const Block own = std::make_shared<double[]>(size);
    if (block != nullptr) std::copy_n(block.get(), size, own.get());
    block = own;
  }
  return block.get() + (slot - begin) * stride(batch);
}

ScoreTable::Added ScoreTable::add(const UnitResult& result) {
  const auto slot = layout_.slot(result.unit);
  BA_CHECK(slot.has_value(), "a result for a unit outside the plan");
  if (has_[*slot]) {
    const UnitResult first = this->result(result.unit);
    const bool equal =
        first.sums == result.sums && first.tokens == result.tokens && first.amax == result.amax;
    return equal ? Added::kDuplicate : Added::kConflict;
  }
  BA_CHECK(result.sums.size() + result.tokens.size() + result.amax.size() ==
               numbers_of(result.unit),
           "a result that was not validated");
  double* end = numbers_to_write(*slot);
  end = std::copy(result.sums.begin(), result.sums.end(), end);
  end = std::copy(result.tokens.begin(), result.tokens.end(), end);
  std::copy(result.amax.begin(), result.amax.end(), end);
  has_[*slot] = true;
  if (result.unit.kind == UnitKind::kCalibrate) ++calibrations_done_;
  ++done_;
  return Added::kNew;
}

bool ScoreTable::planned(const UnitId& unit) const { return layout_.slot(unit).has_value(); }

bool ScoreTable::has(const UnitId& unit) const {
  const auto slot = layout_.slot(unit);
  return slot && has_[*slot];
}

UnitResult ScoreTable::result(const UnitId& unit) const {
  const auto slot = layout_.slot(unit);
  BA_CHECK(slot && has_[*slot], "no result for this unit");
  const double* values = numbers(*slot);
  UnitResult result;
  result.unit = unit;
  if (unit.kind == UnitKind::kCalibrate) {
    result.amax.assign(values, values + 2 * spec_.sites.size());
    return result;
  }
  const size_t sums = sums_of(unit);
  result.sums.assign(values, values + sums);
  result.tokens.assign(values + sums, values + sums + sequences_of(unit));
  return result;
}

std::vector<float> ScoreTable::amax() const {
  BA_CHECK(calibrated(), "calibration is not finished");
  if (!spec_.amax.empty()) return spec_.amax;
  const size_t calibrations = layout_.num_calibration_units();
  std::vector<float> largest(2 * spec_.sites.size(), calibrations > 0 ? 0.0f : 448.0f);
  for (size_t unit = 0; unit < calibrations; ++unit) {
    for (size_t i = 0; i < largest.size(); ++i) {
      largest[i] = std::max(largest[i], static_cast<float>(numbers(unit)[i]));
    }
  }
  return largest;
}

SequenceSums ScoreTable::sequences(int64_t row, CandidateIndex column, Metric metric) const {
  const int64_t begin = row / spec_.sites_per_unit * spec_.sites_per_unit;
  const int64_t end = std::min(begin + spec_.sites_per_unit, spec_.num_rows());
  SequenceSums found;
  for (int64_t batch = 0; batch < spec_.num_batches(); ++batch) {
    const UnitId unit{UnitKind::kScore, BatchIndex(batch), begin, end};
    const size_t slot = layout_.slot(unit).value();
    if (!has_[slot]) continue;
    const double* values = numbers(slot);
    const size_t count = sequences_of(unit);
    const int64_t trial = (row - begin) * spec_.num_columns() + column.value;
    const double* sums = values + static_cast<size_t>(trial * metrics_per_sequence(spec_) +
                                                      static_cast<int64_t>(metric)) *
                                      count;
    const double* tokens = values + sums_of(unit);
    found.sums.insert(found.sums.end(), sums, sums + count);
    found.tokens.insert(found.tokens.end(), tokens, tokens + count);
  }
  return found;
}

Score ScoreTable::score(int64_t row, CandidateIndex column, Metric metric) const {
  const SequenceSums found = sequences(row, column, metric);
  const Ratio mean = ratio(found.sums, found.tokens);
  Score score;
  score.kl_sum_nats = std::accumulate(found.sums.begin(), found.sums.end(), 0.0);
  score.tokens =
      static_cast<int64_t>(std::accumulate(found.tokens.begin(), found.tokens.end(), 0.0));
  score.kl_nats_per_token = mean.value;
  score.standard_error = mean.standard_error;
  return score;
}

}  // namespace bitalloc
