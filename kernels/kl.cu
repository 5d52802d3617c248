// One thread block a row. Each thread walks the row in steps of the block; partial results meet in
// a tree whose shape is fixed, so that a row's result is always the same.
#include <cmath>

#include "kernels/cuda_kernels.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/kl.h"
#include "kernels/kl_element.h"

namespace bitalloc {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// Σ exp(x - shift) with shift = the maximum seen; log Σ exp = shift + log(sum).
struct ExpSum {
  float largest;
  double sum;
};

// Something finite to subtract where nothing but −inf was seen: exp(−inf) is 0, NaN is kept.
__device__ float finite_shift(float largest) { return largest == -INFINITY ? 0.0f : largest; }

__device__ ExpSum combine(ExpSum a, ExpSum b) {
  const float largest = b.largest > a.largest ? b.largest : a.largest;
  const float shift = finite_shift(largest);
  return {largest, a.sum * exp(static_cast<double>(a.largest) - shift) +
                       b.sum * exp(static_cast<double>(b.largest) - shift)};
}

__device__ ExpSum from_lane(ExpSum value, int offset) {
  return {__shfl_down_sync(0xFFFFFFFFu, value.largest, offset),
          __shfl_down_sync(0xFFFFFFFFu, value.sum, offset)};
}

struct KlSums {
  double excess;
  double drift;
};

__device__ KlSums combine(KlSums a, KlSums b) { return {a.excess + b.excess, a.drift + b.drift}; }

__device__ KlSums from_lane(KlSums value, int offset) {
  return {__shfl_down_sync(0xFFFFFFFFu, value.excess, offset),
          __shfl_down_sync(0xFFFFFFFFu, value.drift, offset)};
}

// The block's total, for every thread. `shared` holds kWarps values.
template <typename Value>
__device__ Value reduce_block(Value value, Value* shared) {
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = shared[threadIdx.x % kWarps];
    for (int offset = kWarps / 2; offset > 0; offset /= 2) {
      value = combine(value, from_lane(value, offset));
    }
    if (threadIdx.x == 0) shared[0] = value;
  }
  __syncthreads();
  value = shared[0];
  __syncthreads();  // before somebody reuses `shared`
  return value;
}

__device__ void add_exponentials(ExpSum& total, const float* values, int count) {
  float largest = total.largest;
  for (int i = 0; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  const float shift = finite_shift(largest);
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += exp_approximate(values[i] - shift);
  total.sum = total.sum * exp_approximate(total.largest - shift) + sum;
  total.largest = largest;
}

// Rows whose start is a multiple of 16 bytes are read 4 values at a time, the rest one by one.
__device__ int64_t aligned_part(const float* row, int64_t vocab) {
  return reinterpret_cast<uintptr_t>(row) % 16 == 0 ? vocab / 4 * 4 : 0;
}

__device__ double row_log_sum_exp(const float* row, int64_t vocab) {
  __shared__ ExpSum shared[kWarps];
  ExpSum total = {-INFINITY, 0.0};
  const int64_t aligned = aligned_part(row, vocab);
  for (int64_t i = int64_t{threadIdx.x} * 4; i < aligned; i += kThreads * 4) {
    const float4 next = *reinterpret_cast<const float4*>(row + i);
    const float values[4] = {next.x, next.y, next.z, next.w};
    add_exponentials(total, values, 4);
  }
  for (int64_t i = aligned + threadIdx.x; i < vocab; i += kThreads) {
    add_exponentials(total, row + i, 1);
  }
  total = reduce_block(total, shared);
  return finite_shift(total.largest) + log(total.sum);
}

struct KlRow {
  float log_sum_exp_a;
  float log_sum_exp_b;
  float shift;

  __device__ void add(KlSums& sums, const float* a, const float* b, int count) const {
    float excess = 0;
    float drift = 0;
    for (int i = 0; i < count; ++i) {
      const auto terms = kl_terms(a[i], b[i], log_sum_exp_a, log_sum_exp_b, shift);
      excess += terms.excess;
      drift += terms.drift;
    }
    sums.excess += excess;
    sums.drift += drift;
  }
};

__device__ KlSums row_kl_sums(const KlRow& row, const float* a, const float* b, int64_t vocab) {
  __shared__ KlSums shared[kWarps];
  KlSums sums = {0.0, 0.0};
  const int64_t aligned_a = aligned_part(a, vocab);
  const int64_t aligned = aligned_part(b, vocab) < aligned_a ? 0 : aligned_a;
  for (int64_t i = int64_t{threadIdx.x} * 4; i < aligned; i += kThreads * 4) {
    const float4 a4 = *reinterpret_cast<const float4*>(a + i);
    const float4 b4 = *reinterpret_cast<const float4*>(b + i);
    const float as[4] = {a4.x, a4.y, a4.z, a4.w};
    const float bs[4] = {b4.x, b4.y, b4.z, b4.w};
    row.add(sums, as, bs, 4);
  }
  for (int64_t i = aligned + threadIdx.x; i < vocab; i += kThreads) row.add(sums, a + i, b + i, 1);
  return reduce_block(sums, shared);
}

__global__ void __launch_bounds__(kThreads)
    log_sum_exp_kernel(const float* logits, int64_t vocab, int64_t stride, double* out) {
  const double result = row_log_sum_exp(logits + blockIdx.x * stride, vocab);
  if (threadIdx.x == 0) out[blockIdx.x] = result;
}

struct KlTensors {
  const float* reference;
  const float* trial;
  const double* reference_log_sum_exp;
  int64_t reference_rows;
  int64_t vocab;
  int64_t reference_stride;
  int64_t trial_stride;
};

// This block's row of the trial against its row of the reference.
__device__ KlSums block_kl_sums(const KlTensors& tensors, const float* b, double log_sum_exp_b) {
  const int64_t partner = blockIdx.x % tensors.reference_rows;
  const float* a = tensors.reference + partner * tensors.reference_stride;
  KlRow row;
  row.log_sum_exp_a = static_cast<float>(tensors.reference_log_sum_exp[partner]);
  row.log_sum_exp_b = static_cast<float>(log_sum_exp_b);
  row.shift = row.log_sum_exp_b - row.log_sum_exp_a;
  return row_kl_sums(row, a, b, tensors.vocab);
}

__global__ void __launch_bounds__(kThreads) kl_kernel(KlTensors tensors, double* out) {
  const float* b = tensors.trial + blockIdx.x * tensors.trial_stride;
  const KlSums sums = block_kl_sums(tensors, b, row_log_sum_exp(b, tensors.vocab));
  if (threadIdx.x == 0) out[blockIdx.x] = sums.excess + (log1p(sums.drift) - sums.drift);
}

__global__ void __launch_bounds__(kThreads)
    kl_sums_kernel(KlTensors tensors, const double* trial_log_sum_exp, double* excess,
                   double* drift) {
  const float* b = tensors.trial + blockIdx.x * tensors.trial_stride;
  const KlSums sums = block_kl_sums(tensors, b, trial_log_sum_exp[blockIdx.x]);
  if (threadIdx.x != 0) return;
  excess[blockIdx.x] = sums.excess;
  drift[blockIdx.x] = sums.drift;
}

}  // namespace

Status log_sum_exp_cuda(const float* logits, int64_t rows, int64_t vocab, int64_t stride,
                        double* out, cudaStream_t stream) {
  if (rows <= 0) return {};
  log_sum_exp_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(logits, vocab, stride,
                                                                           out);
  return launch_status("log_sum_exp");
}

Status kl_rows_cuda(const float* reference, const float* trial, int64_t reference_rows,
                    int64_t trial_rows, int64_t vocab, int64_t reference_stride,
                    int64_t trial_stride, const double* reference_log_sum_exp, double* out,
                    cudaStream_t stream) {
  if (trial_rows <= 0) return {};
  const KlTensors tensors = {reference,      trial, reference_log_sum_exp,
                             reference_rows, vocab, reference_stride,
                             trial_stride};
  kl_kernel<<<static_cast<unsigned>(trial_rows), kThreads, 0, stream>>>(tensors, out);
  return launch_status("kl_rows");
}

Status kl_sums_cuda(const float* reference, const float* trial, int64_t reference_rows,
                    int64_t trial_rows, int64_t vocab, int64_t reference_stride,
                    int64_t trial_stride, const double* reference_log_sum_exp,
                    const double* trial_log_sum_exp, double* excess, double* drift,
                    cudaStream_t stream) {
  if (trial_rows <= 0) return {};
  const KlTensors tensors = {reference,      trial, reference_log_sum_exp,
                             reference_rows, vocab, reference_stride,
                             trial_stride};
  kl_sums_kernel<<<static_cast<unsigned>(trial_rows), kThreads, 0, stream>>>(
      tensors, trial_log_sum_exp, excess, drift);
  return launch_status("kl_sums");
}

}  // namespace bitalloc
