// The kernels as functions of tensors: what the worker calls. The only header here that knows
// torch.
//
// Every function runs on the device of its input: on CPUs over ATen's intra-op threads, on GPUs on
// the current stream (when built with CUDA). Thread-safe; results do not depend on the number of
// threads. Wrong shapes or types are programmer errors (BA_CHECK). No autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/formats/format.h"

namespace bitalloc {

// What an engine would read back after storing `x` in `format`: encode, decode, same type. Which
// tokens a query sees so is not its matter (visibility_of).
//
// x: [..., head_dim], float32 or bfloat16 (float16 goes through float32), any strides; a last
// dimension with stride 1 is read in place. The result has x's type and sizes, and x's strides
// where x is dense. NVFP4's blocks of 16 run along head_dim.
// Formats with axis=channel want x: [..., tokens, head_dim]; their groups run along tokens, from
// the first one. Formats with rotate=hadamard rotate rows before, in float32, rounded to x's type,
// and back after. amax: the calibrated largest magnitude of this tensor's site; used by
// ScalePolicy::kCalibrated only, and must then be finite and >= 0. NaN comes out as NaN (NVFP4: its
// whole block); infinities saturate as the engines' kernels do.
at::Tensor fake_quantize(const at::Tensor& x, const Format& format, float amax);

// x·H of its rows (formats/hadamard.h), computed in float32, in x's type.
at::Tensor hadamard(const at::Tensor& x);

// Largest magnitude of `x` (float32 or bfloat16), as a float32 scalar tensor on x's device. NaN if
// any element is NaN, infinity if any is infinite, 0 for an empty tensor: check that it is finite.
at::Tensor absolute_max(const at::Tensor& x);

// log Σ exp of each row of logits [n, vocab] float32 (last dimension contiguous) -> [n] float64.
at::Tensor log_sum_exp_rows(const at::Tensor& logits);

// KL(reference ‖ trial) in nats a row; formula, accuracy and special values: kernels/kl.h.
//
// reference: logits [n, vocab] float32; trial: [k·n, vocab] or [k, n, vocab] float32, k candidates
// stacked, so that trial row i belongs to reference row i mod n. Last dimensions contiguous.
// reference_log_sum_exp: `log_sum_exp_rows(reference)` if it is at hand; undefined: computed here.
// Returns float64 [k·n], or [k, n] for a three-dimensional trial.
at::Tensor kl_rows(const at::Tensor& reference, const at::Tensor& trial,
                   const at::Tensor& reference_log_sum_exp = at::Tensor());

// The two sums that KL is made of, over a part of the vocabulary; those of the parts add up.
//
// reference: the part's logits [n, vocab] float32; trial: [k, n, vocab] float32. Both log-sum-exps
// are of whole rows, float64 [n] and [k·n] or [k, n]. Returns float64 [2, k, n].
at::Tensor kl_sums(const at::Tensor& reference, const at::Tensor& trial,
                   const at::Tensor& reference_log_sum_exp, const at::Tensor& trial_log_sum_exp);

// KL in nats from whole sums [2, …] -> [...]; NaN and infinity as `kl_rows`.
at::Tensor kl_from_sums(const at::Tensor& sums);

}  // namespace bitalloc
