#include "kernels/fake_quant.h"

#include <cmath>

#include "kernels/cpu_vector.h"

namespace bitalloc {
namespace {

static_assert(kLanes == kNvfp4BlockSize, "a vector is a block");

template <Rounding kRounding>
BA_HOST_DEVICE Float16 fake_quantize_16(const Quantizer& quantizer, Float16 values) {
  float bmax = 0;
  if (kNeedsBlockMax<kRounding>) bmax = float_from_bits(largest_lane(magnitude_bits(values)));
  return fake_quantize_in_block<kRounding>(quantizer, bmax, values);
}

template <Rounding kRounding, typename Element>
BA_HOST_DEVICE void fake_quantize_row(const Quantizer& quantizer, const Element* in, Element* out,
                                      int64_t head_dim) {
  int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    store_16(fake_quantize_16<kRounding>(quantizer, load_16(in + i)), out + i);
  }
  if (i == head_dim) return;
  const Float16 tail = load_some(in + i, head_dim - i);
  store_some(fake_quantize_16<kRounding>(quantizer, tail), out + i, head_dim - i);
}

template <Rounding kRounding, typename Element>
BA_HOST_DEVICE void fake_quantize_rows(const Quantizer& quantizer, const Element* in,
                                       int64_t in_stride, Element* out, int64_t out_stride,
                                       int64_t rows, int64_t head_dim) {
  for (int64_t row = 0; row < rows; ++row) {
    fake_quantize_row<kRounding>(quantizer, in + row * in_stride, out + row * out_stride, head_dim);
  }
}

template <typename Element>
BA_HOST_DEVICE void dispatch(const Quantizer& quantizer, const Element* in, int64_t in_stride,
                             Element* out, int64_t out_stride, int64_t rows, int64_t head_dim) {
  switch (quantizer.rounding) {
    case Rounding::kBf16:
      return fake_quantize_rows<Rounding::kBf16>(quantizer, in, in_stride, out, out_stride, rows,
                                                 head_dim);
    case Rounding::kFp8E4m3:
      return fake_quantize_rows<Rounding::kFp8E4m3>(quantizer, in, in_stride, out, out_stride, rows,
                                                    head_dim);
    case Rounding::kNvfp4Served:
      return fake_quantize_rows<Rounding::kNvfp4Served>(quantizer, in, in_stride, out, out_stride,
                                                        rows, head_dim);
    case Rounding::kNvfp4Modelopt:
      return fake_quantize_rows<Rounding::kNvfp4Modelopt>(quantizer, in, in_stride, out, out_stride,
                                                          rows, head_dim);
  }
}

template <typename Element>
BA_HOST_DEVICE uint32_t largest_magnitude_bits(const Element* values, int64_t count) {
  Bits16 largest = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Bits16 bits = magnitude_bits(load_16(values + i));
    largest = bits > largest ? bits : largest;
  }
  const Bits16 tail = magnitude_bits(load_some(values + i, count - i));
  return largest_lane(tail > largest ? tail : largest);
}

}  // namespace

// Named apart and not overloaded: the clones of overloads would share their symbols' prefix.
BA_CPU_CLONES void fake_quantize_f32(const Quantizer& quantizer, const float* in, int64_t in_stride,
                                     float* out, int64_t out_stride, int64_t rows,
                                     int64_t head_dim) {
  dispatch(quantizer, in, in_stride, out, out_stride, rows, head_dim);
}

BA_CPU_CLONES void fake_quantize_bf16(const Quantizer& quantizer, const Bfloat16* in,
                                      int64_t in_stride, Bfloat16* out, int64_t out_stride,
                                      int64_t rows, int64_t head_dim) {
  dispatch(quantizer, in, in_stride, out, out_stride, rows, head_dim);
}

BA_CPU_CLONES uint32_t largest_magnitude_f32(const float* values, int64_t count) {
  return largest_magnitude_bits(values, count);
}

BA_CPU_CLONES uint32_t largest_magnitude_bf16(const Bfloat16* values, int64_t count) {
  return largest_magnitude_bits(values, count);
}

Quantizer make_quantizer(const Format& format, float amax) {
  if (format.scale == ScalePolicy::kConstant) amax = kE4m3Max;
  BA_CHECK(std::isfinite(amax) && amax >= 0, "a calibrated amax must be finite and not negative");
  Quantizer quantizer;
  switch (format.kind) {
    case FormatKind::kBf16:
      quantizer.rounding = Rounding::kBf16;
      break;
    case FormatKind::kFp8E4m3:
      quantizer.rounding = Rounding::kFp8E4m3;
      quantizer.fp8_scale = fp8_scale(amax);
      break;
    case FormatKind::kNvfp4:
      const bool served = format.encoding == Encoding::kServed;
      quantizer.rounding = served ? Rounding::kNvfp4Served : Rounding::kNvfp4Modelopt;
      quantizer.nvfp4_global_scale =
          served ? nvfp4_served_global_scale(amax) : nvfp4_modelopt_global_scale(amax);
      break;
  }
  return quantizer;
}

void fake_quantize_cpu(const Quantizer& quantizer, const float* in, int64_t in_stride, float* out,
                       int64_t out_stride, int64_t rows, int64_t head_dim) {
  fake_quantize_f32(quantizer, in, in_stride, out, out_stride, rows, head_dim);
}

void fake_quantize_cpu(const Quantizer& quantizer, const Bfloat16* in, int64_t in_stride,
                       Bfloat16* out, int64_t out_stride, int64_t rows, int64_t head_dim) {
  fake_quantize_bf16(quantizer, in, in_stride, out, out_stride, rows, head_dim);
}

float absolute_max_cpu(const float* values, int64_t count) {
  return float_from_bits(largest_magnitude_f32(values, count));
}

float absolute_max_cpu(const Bfloat16* values, int64_t count) {
  return float_from_bits(largest_magnitude_bf16(values, count));
}

}  // namespace bitalloc
