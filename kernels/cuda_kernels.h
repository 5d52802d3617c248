// The kernels on a GPU: the same headers of numerics as on the CPU. C++17, no torch.
//
// Every function queues work on `stream` and returns; pointers are device memory and must live
// until the stream is past. Errors: kInternal naming the launch (asynchronous faults show at the
// next synchronization). Fake quantization and maxima equal the CPU's bit for bit. Sums of KL run
// in a fixed order (no atomics), so a row's result depends on the row only; it is another order
// than the CPU's: equal to about 1e-6 relative.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/status.h"
#include "kernels/quantizer.h"

namespace bitalloc {

// in, out: [rows, head_dim] with strides in elements, as `fake_quantize_cpu`. `out` may be `in`.
Status fake_quantize_cuda(const Quantizer& quantizer, const float* in, int64_t in_stride,
                          float* out, int64_t out_stride, int64_t rows, int64_t head_dim,
                          cudaStream_t stream);
Status fake_quantize_cuda(const Quantizer& quantizer, const Bfloat16* in, int64_t in_stride,
                          Bfloat16* out, int64_t out_stride, int64_t rows, int64_t head_dim,
                          cudaStream_t stream);

// As hadamard_cpu, bit for bit.
Status hadamard_cuda(float* x, int64_t rows, int64_t n, cudaStream_t stream);

// *out (device) = max(*out, largest magnitude of `count` values): set it to 0 first, or go on with
// a running maximum. NaN if there is a NaN.
Status absolute_max_cuda(const float* values, int64_t count, float* out, cudaStream_t stream);
Status absolute_max_cuda(const Bfloat16* values, int64_t count, float* out, cudaStream_t stream);

// log Σ exp of each row of logits [rows, vocab].
Status log_sum_exp_cuda(const float* logits, int64_t rows, int64_t vocab, int64_t stride,
                        double* out, cudaStream_t stream);

// KL of each of `trial_rows` rows, where trial row i belongs to reference row i mod reference_rows.
Status kl_rows_cuda(const float* reference, const float* trial, int64_t reference_rows,
                    int64_t trial_rows, int64_t vocab, int64_t reference_stride,
                    int64_t trial_stride, const double* reference_log_sum_exp, double* out,
                    cudaStream_t stream);

// Of each of `trial_rows` rows the sums M (excess) and R (drift) over a part of the vocabulary,
// from the log-sum-exps of whole rows ([reference_rows] and [trial_rows]); see kernels/kl.h.
Status kl_sums_cuda(const float* reference, const float* trial, int64_t reference_rows,
                    int64_t trial_rows, int64_t vocab, int64_t reference_stride,
                    int64_t trial_stride, const double* reference_log_sum_exp,
                    const double* trial_log_sum_exp, double* excess, double* drift,
                    cudaStream_t stream);

}  // namespace bitalloc
