#include "tests/sim/scores.h"

#include <algorithm>

#include "common/random.h"

namespace bitalloc::sim {
namespace {

uint64_t mix(const SearchSpec& spec, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t seed = 14695981039346656037u;  // FNV-1a over what the scores depend on
  for (const char letter : spec.tokens_sha256) {
    seed = (seed ^ static_cast<uint8_t>(letter)) * 1099511628211u;
  }
  return Random(seed ^ (a << 40) ^ (b << 20) ^ c).next();
}

double closed_score(const SearchSpec& spec, int64_t row, int64_t column, int64_t sequence) {
  return static_cast<double>(1 + mix(spec, row, column, sequence) % 4096) / 4096.0;
}

float closed_batch_amax(const SearchSpec& spec, size_t i, int64_t batch) {
  return static_cast<float>(1 + mix(spec, 1'000'000 + i, 0, batch) % 4096);
}

}  // namespace

SearchSpec make_spec(const std::string& salt, const std::string& model, int64_t rows,
                     int64_t sequences, bool calibrated) {
  SearchSpec spec;
  spec.model = {"/models/" + model, model, "llama", "weights of " + model, "c", rows, 100};
  for (int64_t i = 0; i < rows; ++i) spec.sites.push_back({fmt::format("layers.{}", i), i, 64, 64});
  spec.candidates = {*parse_candidate(calibrated ? "fp8[scale=calibrated]" : "fp8"),
                     *parse_candidate("nvfp4")};
  spec.sequences = sequences;
  spec.length = 4;
  spec.batch_sequences = 2;
  spec.tokens_sha256 = "tokens of " + salt;
  if (calibrated) {
    spec.calibration_sequences = 3;
    spec.calibration_length = 4;
    spec.calibration_sha256 = "calibration of " + salt;
  }
  return spec;
}

UnitResult closed_result(const SearchSpec& spec, const UnitId& unit) {
  UnitResult result;
  result.unit = unit;
  if (unit.kind == UnitKind::kCalibrate) {
    for (size_t i = 0; i < 2 * spec.sites.size(); ++i) {
      result.amax.push_back(closed_batch_amax(spec, i, unit.batch.value));
    }
    return result;
  }
  const int64_t first = unit.batch.value * spec.batch_sequences;
  const int64_t count = spec.batch_size(unit.batch);
  for (int64_t row = unit.row_begin; row < unit.row_end; ++row) {
    for (int64_t column = 0; column < spec.num_columns(); ++column) {
      for (int64_t i = 0; i < count; ++i) {
        result.sums.push_back(closed_score(spec, row, column, first + i));
      }
    }
  }
  result.tokens.assign(count, spec.length);
  return result;
}

std::vector<float> closed_amax(const SearchSpec& spec) {
  std::vector<float> amax(2 * spec.sites.size(), spec.needs_calibration() ? 0.0f : 448.0f);
  if (!spec.needs_calibration()) return amax;
  for (size_t i = 0; i < amax.size(); ++i) {
    for (int64_t batch = 0; batch < spec.num_calibration_batches(); ++batch) {
      amax[i] = std::max(amax[i], closed_batch_amax(spec, i, batch));
    }
  }
  return amax;
}

double closed_total(const SearchSpec& spec, int64_t row, int64_t column) {
  double total = 0;
  for (int64_t i = 0; i < spec.sequences; ++i) total += closed_score(spec, row, column, i);
  return total;
}

}  // namespace bitalloc::sim
