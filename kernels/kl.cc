#include "kernels/kl.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu_vector.h"
#include "kernels/kl_element.h"

namespace bitalloc {
namespace {

// Sums run in a fixed order: 16 float32 lanes over chunks of 1024, then float64. The order is the
// same for every instruction set, and 64 additions a lane cost at most 4e-6 of relative accuracy.
constexpr int64_t kChunk = 1024;
static_assert(kChunk % kLanes == 0, "only the last chunk of a row has a tail");

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// What pads the tail of a row: probability 0 on both sides.
BA_HOST_DEVICE Float16 load_tail(const float* from, int64_t count) {
  float padded[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) padded[i] = i < count ? from[i] : kMinusInfinity;
  return load_16(padded);
}

// Comparison drops NaN here; the sums of exponentials keep it.
BA_HOST_DEVICE Float16 larger(Float16 a, Float16 b) { return b > a ? b : a; }

BA_HOST_DEVICE Float16 chunk_max(const float* values, int64_t count) {
  Float16 largest = broadcast(kMinusInfinity);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) largest = larger(largest, load_16(values + i));
  if (i < count) largest = larger(largest, load_tail(values + i, count - i));
  return largest;
}

BA_HOST_DEVICE Float16 chunk_exp_sum(const float* values, int64_t count, Float16 shift) {
  Float16 sum = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) sum += exp_approximate(load_16(values + i) - shift);
  if (i < count) sum += exp_approximate(load_tail(values + i, count - i) - shift);
  return sum;
}

// A lane that has seen nothing but −inf can have any shift: exp(−inf) is 0, and NaN is kept.
BA_HOST_DEVICE Float16 finite_shift(Float16 largest) {
  return largest == kMinusInfinity ? 0.0f : largest;
}

struct KlSums {
  Sum16 excess;
  Sum16 drift;
};

// Whether |d'| <= 1/2 throughout; not so with a NaN.
BA_HOST_DEVICE bool all_small(const float* a, const float* b, int64_t count, float shift) {
  Bits16 largest = {};
  for (int64_t i = 0; i + kLanes <= count; i += kLanes) {
    const Bits16 bits = magnitude_bits((load_16(b + i) - load_16(a + i)) - shift);
    largest = bits > largest ? bits : largest;
  }
  return largest_lane(largest) <= float_bits(0.5f);
}

BA_HOST_DEVICE void add_chunk(const float* a, const float* b, int64_t count, float log_sum_exp_a,
                              float log_sum_exp_b, float shift, KlSums& sums) {
  Float16 excess = {};
  Float16 drift = {};
  int64_t i = 0;
  if (all_small(a, b, count, shift)) {  // as below without e^b: a third less work, same bits
    for (; i + kLanes <= count; i += kLanes) {
      const auto terms = kl_terms_small(load_16(a + i), load_16(b + i), log_sum_exp_a, shift);
      excess += terms.excess;
      drift += terms.drift;
    }
  }
  for (; i < count; i += kLanes) {
    const int64_t left = count - i;
    const Float16 a16 = left < kLanes ? load_tail(a + i, left) : load_16(a + i);
    const Float16 b16 = left < kLanes ? load_tail(b + i, left) : load_16(b + i);
    const auto terms = kl_terms(a16, b16, log_sum_exp_a, log_sum_exp_b, shift);
    excess += terms.excess;
    drift += terms.drift;
  }
  sums.excess.add(excess);
  sums.drift.add(drift);
}

}  // namespace

// Each lane has its own running maximum, which moves with the chunks: a row is read once from
// memory.
BA_CPU_CLONES double log_sum_exp_row(const float* values, int64_t count) {
  Float16 largest = broadcast(kMinusInfinity);
  Sum16 sum;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t size = std::min(kChunk, count - begin);
    const Float16 next = larger(largest, chunk_max(values + begin, size));
    const Float16 shift = finite_shift(next);
    sum.scale(exp_approximate(largest - shift));
    sum.add(chunk_exp_sum(values + begin, size, shift));
    largest = next;
  }
  const Float16 shift = finite_shift(largest);
  float top = kMinusInfinity;
  for (int lane = 0; lane < kLanes; ++lane) top = std::max(top, largest[lane]);
  if (top == kMinusInfinity) top = 0.0f;
  double total = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (sum.lanes[lane] == 0) continue;  // only −inf: its shift says nothing
    total += sum.lanes[lane] * std::exp(static_cast<double>(shift[lane]) - top);
  }
  return top + std::log(total);
}

BA_CPU_CLONES void kl_sums_row(const float* a, const float* b, int64_t count, float log_sum_exp_a,
                               float log_sum_exp_b, double* excess, double* drift) {
  const float shift = log_sum_exp_b - log_sum_exp_a;
  KlSums sums;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t size = std::min(kChunk, count - begin);
    add_chunk(a + begin, b + begin, size, log_sum_exp_a, log_sum_exp_b, shift, sums);
  }
  *excess = sums.excess.total();
  *drift = sums.drift.total();
}

double kl_from_sums(double excess, double drift) { return excess + (std::log1p(drift) - drift); }

void log_sum_exp_cpu(const float* logits, int64_t rows, int64_t vocab, int64_t stride,
                     double* out) {
  for (int64_t row = 0; row < rows; ++row) {
    out[row] = log_sum_exp_row(logits + row * stride, vocab);
  }
}

void kl_rows_cpu(const float* reference, const float* trial, int64_t rows, int64_t vocab,
                 int64_t reference_stride, int64_t trial_stride,
                 const double* reference_log_sum_exp, double* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* a = reference + row * reference_stride;
    const float* b = trial + row * trial_stride;
    double excess = 0;
    double drift = 0;
    kl_sums_row(a, b, vocab, static_cast<float>(reference_log_sum_exp[row]),
                static_cast<float>(log_sum_exp_row(b, vocab)), &excess, &drift);
    out[row] = kl_from_sums(excess, drift);
  }
}

}  // namespace bitalloc
