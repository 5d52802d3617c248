// The results of a search: for every batch, row and column the sums of each sequence.
//
// First write wins: scores are deterministic, so a second value for the same place is equal or a
// defect; it is compared and counted, never added. Not thread-safe; copies share the results, which
// never change, so a copy for another thread costs no more than its plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/plan.h"
#include "common/search_spec.h"

namespace bitalloc {

// What a worker delivers for one unit.
struct UnitResult {
  UnitId unit;
  // kScore: [rows of the unit][columns][metrics][sequences of the batch], nats summed over tokens.
  std::vector<double> sums;
  // kScore: scored tokens (mask 1) of each sequence of the batch.
  std::vector<int64_t> tokens;
  // kCalibrate: [sites][2] amax of K and V.
  std::vector<float> amax;
};

// Sizes fit the unit, everything is finite, sums of KL are not below −1e-6 and counts not negative.
// Errors: kInvalidArgument naming the field, row and column.
Status validate(const UnitResult& result, const SearchSpec& spec);

// Bytes that Redis and checkpoints keep for one result (little-endian doubles, int64 and floats,
// each list behind its count) and back.
std::string pack(const UnitResult& result);
Result<UnitResult> unpack_unit_result(const UnitId& unit, std::string_view bytes);

// A score and how sure it is.
struct Score {
  double kl_sum_nats = 0;
  int64_t tokens = 0;
  double kl_nats_per_token = 0;
  // Of kl_nats_per_token, over sequences (ratio.h); nothing for one sequence.
  std::optional<double> standard_error;
};

// What one row and column got from each sequence, in the order of the sequences.
struct SequenceSums {
  std::vector<double> sums;    // [sequences]: nats or counts, as the metric is
  std::vector<double> tokens;  // [sequences]: scored tokens
};

class ScoreTable {
 public:
  explicit ScoreTable(const SearchSpec& spec);

  enum class Added { kNew, kDuplicate, kConflict };
  // REQUIRES: validate(result, spec) is OK. kConflict: another value is there already; it stays.
  Added add(const UnitResult& result);

  bool planned(const UnitId& unit) const;  // one of units()
  bool has(const UnitId& unit) const;
  int64_t units_total() const { return static_cast<int64_t>(units_.size()); }
  int64_t units_done() const { return done_; }
  // Every calibration batch is in.
  bool calibrated() const { return calibrations_done_ == layout_.num_calibration_units(); }
  bool complete() const { return done_ == units_total(); }
  const std::vector<UnitId>& units() const { return units_; }
  // The result of a unit that `has`.
  UnitResult result(const UnitId& unit) const;

  // [sites × 2] amax of K and V: the largest over the calibration batches, 448 where the spec needs
  // none. REQUIRES: calibrated().
  std::vector<float> amax() const;

  // Of the batches that are in; of a complete table all sequences, the same ones everywhere.
  SequenceSums sequences(int64_t row, CandidateIndex column, Metric metric = Metric::kKl) const;

  // Sum of `metric` over the batches that are in, for one row and column.
  Score score(int64_t row, CandidateIndex column, Metric metric = Metric::kKl) const;

 private:
  // The results of one batch, allocated with its first: a stride a unit, and of each unit its sums
  // and tokens, or amax, one behind the other. All are exact as doubles, and how many there are of
  // each follows from the unit and the spec. Shared by copies of the table, each of which reads
  // only what it has; whoever adds to a shared block copies it first.
  using Block = std::shared_ptr<double[]>;

  size_t sums_of(const UnitId& unit) const;
  size_t sequences_of(const UnitId& unit) const;
  size_t numbers_of(const UnitId& unit) const;  // that its result has in all
  size_t stride(size_t batch) const;
  const double* numbers(size_t slot) const;
  double* numbers_to_write(size_t slot);

  SearchSpec spec_;
  PlanLayout layout_;
  std::vector<UnitId> units_;
  std::vector<Block> blocks_;  // by PlanLayout's batches
  std::vector<bool> has_;      // in the order of units_
  size_t calibrations_done_ = 0;
  int64_t done_ = 0;
};

}  // namespace bitalloc
