// Fake quantization on the CPU: what comes back after a tensor was stored in a format.
//
// Thread-safe, single-threaded: callers split rows among threads; the result of a row depends on
// nothing but the row. The numerics are in the format headers; CUDA: kernels/fake_quant_cuda.h.
#pragma once

#include <cstdint>

#include "kernels/formats/format.h"
#include "kernels/quantizer.h"

namespace bitalloc {

// Resolves a format. `amax`, the calibrated largest magnitude of the tensor, is used by
// ScalePolicy::kCalibrated only, and must then be finite and >= 0 (BA_CHECK); the constant policy
// means amax 448. An amax of 0 (nothing but zeros was seen) becomes what the format header says.
Quantizer make_quantizer(const Format& format, float amax);

// in, out: [rows, head_dim], the strides in elements between rows; elements of a row adjoin.
// `out` may be `in`; otherwise they must not overlap.
void fake_quantize_cpu(const Quantizer& quantizer, const float* in, int64_t in_stride, float* out,
                       int64_t out_stride, int64_t rows, int64_t head_dim);
void fake_quantize_cpu(const Quantizer& quantizer, const Bfloat16* in, int64_t in_stride,
                       Bfloat16* out, int64_t out_stride, int64_t rows, int64_t head_dim);

// Rotates rows by the Walsh–Hadamard transform (formats/hadamard.h). x: [rows, n] contiguous,
// changed in place; n: is_hadamard_size.
void hadamard_cpu(float* x, int64_t rows, int64_t n);

// Largest magnitude of `count` values, for calibration: NaN if there is a NaN, 0 for none at all.
float absolute_max_cpu(const float* values, int64_t count);
float absolute_max_cpu(const Bfloat16* values, int64_t count);

}  // namespace bitalloc
