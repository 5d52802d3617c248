#include "kernels/fake_quant.h"

#include <cmath>

#include "kernels/cpu_vector.h"

namespace bitalloc {
namespace {

template <typename Element>
struct RowArguments {
  const Quantizer& quantizer;
  const Element* in;
  int64_t in_stride;
  Element* out;
  int64_t out_stride;
  int64_t rows;
  int64_t head_dim;
};

// Sixteen neighbours: a block, in as many vectors as it takes.
template <Rounding kRounding, typename Vector, typename Element>
BA_HOST_DEVICE void fake_quantize_16(const Quantizer& quantizer, const Element* in, Element* out) {
  constexpr int kParts = kNvfp4BlockSize / Vector::kWidth;
  typename Vector::Float parts[kParts];
  typename Vector::Bits largest = {};
  for (int i = 0; i < kParts; ++i) {
    parts[i] = load<Vector>(in + i * Vector::kWidth);
    largest = larger_bits(largest, magnitude_bits(parts[i]));
  }
  float bmax = 0;
  if constexpr (kNeedsBlockMax<kRounding>) bmax = float_from_bits(largest_lane(largest));
  for (int i = 0; i < kParts; ++i) {
    store<Vector>(fake_quantize_in_block<kRounding>(quantizer, bmax, parts[i]),
                  out + i * Vector::kWidth);
  }
}

template <Rounding kRounding, typename Vector, typename Element>
BA_HOST_DEVICE void fake_quantize_row(const Quantizer& quantizer, const Element* in, Element* out,
                                      int64_t head_dim) {
  int64_t i = 0;
  for (; i + kNvfp4BlockSize <= head_dim; i += kNvfp4BlockSize) {
    fake_quantize_16<kRounding, Vector>(quantizer, in + i, out + i);
  }
  if (i == head_dim) return;
  Element tail[kNvfp4BlockSize] = {};
  for (int64_t k = i; k < head_dim; ++k) tail[k - i] = in[k];
  fake_quantize_16<kRounding, Vector>(quantizer, tail, tail);
  for (int64_t k = i; k < head_dim; ++k) out[k] = tail[k - i];
}

template <Rounding kRounding, typename Vector, typename Element>
BA_HOST_DEVICE void fake_quantize_rows(const RowArguments<Element>& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    fake_quantize_row<kRounding, Vector>(a.quantizer, a.in + row * a.in_stride,
                                         a.out + row * a.out_stride, a.head_dim);
  }
}

template <typename Vector, typename Element>
BA_HOST_DEVICE void fake_quantize_loop(const RowArguments<Element>& a) {
  switch (a.quantizer.rounding) {
    case Rounding::kBf16:
      return fake_quantize_rows<Rounding::kBf16, Vector>(a);
    case Rounding::kFp8E4m3:
      return fake_quantize_rows<Rounding::kFp8E4m3, Vector>(a);
    case Rounding::kNvfp4Served:
      return fake_quantize_rows<Rounding::kNvfp4Served, Vector>(a);
    case Rounding::kNvfp4Modelopt:
      return fake_quantize_rows<Rounding::kNvfp4Modelopt, Vector>(a);
  }
}

template <typename Element>
struct MaxArguments {
  const Element* values;
  int64_t count;
  uint32_t* largest;
};

template <typename Vector, typename Element>
BA_HOST_DEVICE void absolute_max_loop(const MaxArguments<Element>& a) {
  typename Vector::Bits largest = {};
  int64_t i = 0;
  for (; i + Vector::kWidth <= a.count; i += Vector::kWidth) {
    largest = larger_bits(largest, magnitude_bits(load<Vector>(a.values + i)));
  }
  Element tail[Vector::kWidth] = {};
  for (int64_t k = i; k < a.count; ++k) tail[k - i] = a.values[k];
  *a.largest = largest_lane(larger_bits(largest, magnitude_bits(load<Vector>(tail))));
}

BA_DEFINE_FOR_CPUS(fake_quantize_f32, fake_quantize_loop, RowArguments<float>)
BA_DEFINE_FOR_CPUS(fake_quantize_bf16, fake_quantize_loop, RowArguments<Bfloat16>)
BA_DEFINE_FOR_CPUS(absolute_max_f32, absolute_max_loop, MaxArguments<float>)
BA_DEFINE_FOR_CPUS(absolute_max_bf16, absolute_max_loop, MaxArguments<Bfloat16>)

}  // namespace

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
  fake_quantize_f32({quantizer, in, in_stride, out, out_stride, rows, head_dim});
}

void fake_quantize_cpu(const Quantizer& quantizer, const Bfloat16* in, int64_t in_stride,
                       Bfloat16* out, int64_t out_stride, int64_t rows, int64_t head_dim) {
  fake_quantize_bf16({quantizer, in, in_stride, out, out_stride, rows, head_dim});
}

float absolute_max_cpu(const float* values, int64_t count) {
  uint32_t largest = 0;
  absolute_max_f32({values, count, &largest});
  return float_from_bits(largest);
}

float absolute_max_cpu(const Bfloat16* values, int64_t count) {
  uint32_t largest = 0;
  absolute_max_bf16({values, count, &largest});
  return float_from_bits(largest);
}

}  // namespace bitalloc
