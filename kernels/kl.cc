#include "kernels/kl.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu_vector.h"
#include "kernels/kl_element.h"

namespace bitalloc {
namespace {

// A lane adds 64 values in float32, then goes on in float64: costs at most 4e-6 of relative
// accuracy.
template <typename Vector>
constexpr int64_t kChunk = 64 * Vector::kWidth;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Up to one vector of values; what pads a row's tail has probability 0.
template <typename Vector>
BA_HOST_DEVICE typename Vector::Float load_tail(const float* from, int64_t count) {
  float padded[Vector::kWidth];
  for (int64_t i = 0; i < Vector::kWidth; ++i) padded[i] = i < count ? from[i] : kMinusInfinity;
  return load<Vector>(padded);
}

// Comparison drops NaN here; the sums of exponentials keep it.
template <typename Float>
BA_HOST_DEVICE Float larger(Float a, Float b) {
  return b > a ? b : a;
}

template <typename Vector>
BA_HOST_DEVICE typename Vector::Float chunk_max(const float* values, int64_t count) {
  auto largest = broadcast<Vector>(kMinusInfinity);
  int64_t i = 0;
  for (; i + Vector::kWidth <= count; i += Vector::kWidth) {
    largest = larger(largest, load<Vector>(values + i));
  }
  if (i < count) largest = larger(largest, load_tail<Vector>(values + i, count - i));
  return largest;
}

template <typename Vector>
BA_HOST_DEVICE typename Vector::Float chunk_exp_sum(const float* values, int64_t count,
                                                    typename Vector::Float shift) {
  typename Vector::Float sum = {};
  int64_t i = 0;
  for (; i + Vector::kWidth <= count; i += Vector::kWidth) {
    sum += exp_approximate(load<Vector>(values + i) - shift);
  }
  if (i < count) sum += exp_approximate(load_tail<Vector>(values + i, count - i) - shift);
  return sum;
}

// A lane that has seen nothing but −inf can have any shift: exp(−inf) is 0, and NaN is kept.
template <typename Float>
BA_HOST_DEVICE Float finite_shift(Float largest) {
  return largest == kMinusInfinity ? 0.0f : largest;
}

struct LogSumExpArguments {
  const float* values;
  int64_t count;
  double* result;
};

// Each lane has its own running maximum, which moves with the chunks: a row is read once from
// memory.
template <typename Vector>
BA_HOST_DEVICE void log_sum_exp_loop(const LogSumExpArguments& row) {
  auto largest = broadcast<Vector>(kMinusInfinity);
  LaneSums<Vector> sum;
  for (int64_t begin = 0; begin < row.count; begin += kChunk<Vector>) {
    const int64_t size = std::min(kChunk<Vector>, row.count - begin);
    const auto next = larger(largest, chunk_max<Vector>(row.values + begin, size));
    const auto shift = finite_shift(next);
    sum.scale(exp_approximate(largest - shift));
    sum.add(chunk_exp_sum<Vector>(row.values + begin, size, shift));
    largest = next;
  }
  const auto shift = finite_shift(largest);
  float top = kMinusInfinity;
  for (int lane = 0; lane < Vector::kWidth; ++lane) top = std::max(top, largest[lane]);
  if (top == kMinusInfinity) top = 0.0f;
  double total = 0;
  for (int lane = 0; lane < Vector::kWidth; ++lane) {
    if (sum.lanes[lane] == 0) continue;  // only −inf: its shift says nothing
    total += sum.lanes[lane] * std::exp(static_cast<double>(shift[lane]) - top);
  }
  *row.result = top + std::log(total);
}

struct KlArguments {
  const float* a;
  const float* b;
  int64_t count;
  float log_sum_exp_a;
  float log_sum_exp_b;
  double* excess;
  double* drift;
};

// Whether |d'| <= 1/2 in all full vectors; not so with a NaN.
template <typename Vector>
BA_HOST_DEVICE bool all_small(const float* a, const float* b, int64_t count, float shift) {
  typename Vector::Bits largest = {};
  for (int64_t i = 0; i + Vector::kWidth <= count; i += Vector::kWidth) {
    const auto d = (load<Vector>(b + i) - load<Vector>(a + i)) - shift;
    largest = larger_bits(largest, magnitude_bits(d));
  }
  return largest_lane(largest) <= float_bits(0.5f);
}

template <typename Vector>
struct KlSums {
  LaneSums<Vector> excess;
  LaneSums<Vector> drift;
};

template <typename Vector>
BA_HOST_DEVICE void add_chunk(const KlArguments& row, int64_t begin, int64_t count,
                              KlSums<Vector>& sums) {
  using Float = typename Vector::Float;
  const float* a = row.a + begin;
  const float* b = row.b + begin;
  const float shift = row.log_sum_exp_b - row.log_sum_exp_a;
  Float excess = {};
  Float drift = {};
  int64_t i = 0;
  if (all_small<Vector>(a, b, count, shift)) {  // as below without e^b: less work, same bits
    for (; i + Vector::kWidth <= count; i += Vector::kWidth) {
      const auto terms =
          kl_terms_small(load<Vector>(a + i), load<Vector>(b + i), row.log_sum_exp_a, shift);
      excess += terms.excess;
      drift += terms.drift;
    }
  }
  for (; i < count; i += Vector::kWidth) {
    const int64_t left = count - i;
    const bool full = left >= Vector::kWidth;
    const Float a_values = full ? load<Vector>(a + i) : load_tail<Vector>(a + i, left);
    const Float b_values = full ? load<Vector>(b + i) : load_tail<Vector>(b + i, left);
    const auto terms = kl_terms(a_values, b_values, row.log_sum_exp_a, row.log_sum_exp_b, shift);
    excess += terms.excess;
    drift += terms.drift;
  }
  sums.excess.add(excess);
  sums.drift.add(drift);
}

template <typename Vector>
BA_HOST_DEVICE void kl_loop(const KlArguments& row) {
  KlSums<Vector> sums;
  for (int64_t begin = 0; begin < row.count; begin += kChunk<Vector>) {
    add_chunk<Vector>(row, begin, std::min(kChunk<Vector>, row.count - begin), sums);
  }
  *row.excess = sums.excess.total();
  *row.drift = sums.drift.total();
}

BA_DEFINE_FOR_CPUS(log_sum_exp_row, log_sum_exp_loop, LogSumExpArguments)
BA_DEFINE_FOR_CPUS(kl_sums_row, kl_loop, KlArguments)

}  // namespace

double kl_from_sums(double excess, double drift) { return excess + (std::log1p(drift) - drift); }

void log_sum_exp_cpu(const float* logits, int64_t rows, int64_t vocab, int64_t stride,
                     double* out) {
  for (int64_t row = 0; row < rows; ++row) {
    log_sum_exp_row({logits + row * stride, vocab, out + row});
  }
}

void kl_sums_cpu(const float* reference, const float* trial, int64_t rows, int64_t vocab,
                 int64_t reference_stride, int64_t trial_stride,
                 const double* reference_log_sum_exp, const double* trial_log_sum_exp,
                 double* excess, double* drift) {
  for (int64_t row = 0; row < rows; ++row) {
    kl_sums_row({reference + row * reference_stride, trial + row * trial_stride, vocab,
                 static_cast<float>(reference_log_sum_exp[row]),
                 static_cast<float>(trial_log_sum_exp[row]), excess + row, drift + row});
  }
}

void kl_rows_cpu(const float* reference, const float* trial, int64_t rows, int64_t vocab,
                 int64_t reference_stride, int64_t trial_stride,
                 const double* reference_log_sum_exp, double* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* a = reference + row * reference_stride;
    const float* b = trial + row * trial_stride;
    double log_sum_exp_b = 0;
    log_sum_exp_row({b, vocab, &log_sum_exp_b});
    double excess = 0;
    double drift = 0;
    kl_sums_cpu(a, b, 1, vocab, vocab, vocab, reference_log_sum_exp + row, &log_sum_exp_b, &excess,
                &drift);
    out[row] = kl_from_sums(excess, drift);
  }
}

}  // namespace bitalloc
