#include "kernels/fake_quant.h"

#include <cmath>

#include "kernels/cpu_group.h"
#include "kernels/formats/hadamard.h"

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

// `size` neighbours, all of whose vectors are whole.
template <typename Vector, int kSize, typename Numerics, typename Element>
BA_HOST_DEVICE void fake_quantize_whole(const Numerics& numerics, const Element* in, Element* out,
                                        int size) {
  VectorGroup<Vector, kSize> values(in, size);
  numerics.fake_quantize(values);
  values.save(out);
}

// Any `size` neighbours up to a group.
template <typename Vector, int kSize, typename Numerics, typename Element>
BA_HOST_DEVICE void fake_quantize_part(const Numerics& numerics, const Element* in, Element* out,
                                       int size) {
  constexpr int kPadded = kSize > 0 ? kSize : kLongestGroup;
  Element padded[kPadded];
  for (int k = 0; k < kPadded; ++k) padded[k] = in[k < size ? k : 0];
  fake_quantize_whole<Vector, kSize>(numerics, padded, padded, size);
  for (int k = 0; k < size; ++k) out[k] = padded[k];
}

// Whole groups of kSize neighbours, many at once; returns how many rows it did. The groups of a row
// come one after the other, and so do rows.
template <typename Vector, int kSize, typename Numerics, typename Element>
BA_HOST_DEVICE int64_t fake_quantize_batches(const Numerics numerics,
                                             const RowArguments<Element>& a) {
  using Batch = VectorBatch<Vector, kSize, Element>;
  if (a.head_dim % kSize != 0) return 0;
  const int64_t groups = a.head_dim / kSize;
  // Rows that make whole batches: the fewest whose groups are a multiple of a batch's.
  int64_t rows_at_once = 1;
  while (rows_at_once * groups % Batch::kGroups != 0) rows_at_once *= 2;
  int64_t row = 0;
  for (; row + rows_at_once <= a.rows; row += rows_at_once) {
    const Element* in[Batch::kGroups];
    Element* out[Batch::kGroups];
    int filled = 0;
    for (int64_t i = row; i < row + rows_at_once; ++i) {
      for (int64_t k = 0; k < groups; ++k) {
        in[filled] = a.in + i * a.in_stride + k * kSize;
        out[filled] = a.out + i * a.out_stride + k * kSize;
        if (++filled < Batch::kGroups) continue;
        filled = 0;
        Batch values(in, out);
        numerics.fake_quantize(values);
      }
    }
  }
  return row;
}

// Rows from `row` on, in groups of `group` neighbours; kSize: as many at compile time, or 0.
template <typename Vector, int kSize, typename Numerics, typename Element>
BA_HOST_DEVICE void fake_quantize_groups(const Numerics numerics, int group, int64_t row,
                                         const RowArguments<Element>& a) {
  if constexpr (kSize > 0) group = kSize;
  const bool whole_vectors = group % Vector::kWidth == 0;
  for (; row < a.rows; ++row) {
    const Element* in = a.in + row * a.in_stride;
    Element* out = a.out + row * a.out_stride;
    int64_t i = 0;
    for (; whole_vectors && i + group <= a.head_dim; i += group) {
      fake_quantize_whole<Vector, kSize>(numerics, in + i, out + i, group);
    }
    for (; i < a.head_dim; i += group) {
      const int64_t left = a.head_dim - i;
      fake_quantize_part<Vector, kSize>(numerics, in + i, out + i,
                                        left < group ? static_cast<int>(left) : group);
    }
  }
}

template <typename Vector, typename Element>
struct FakeQuantizeRows {
  const RowArguments<Element>& a;

  template <typename Numerics>
  BA_HOST_DEVICE void operator()(const Numerics& numerics) const {
    constexpr int kGroup = Numerics::kGroup;
    const int group = a.quantizer.group > 0 ? a.quantizer.group : static_cast<int>(a.head_dim);
    int64_t row = 0;
    if constexpr (Numerics::kBatch && kGroup > 0) {
      row = fake_quantize_batches<Vector, kGroup>(numerics, a);
    } else if constexpr (Numerics::kBatch) {
      if (group == 32) row = fake_quantize_batches<Vector, 32>(numerics, a);
      if (group == 64) row = fake_quantize_batches<Vector, 64>(numerics, a);
      if (group == 128) row = fake_quantize_batches<Vector, 128>(numerics, a);
    }
    fake_quantize_groups<Vector, kGroup>(numerics, group, row, a);
  }
};

template <typename Vector, typename Element>
BA_HOST_DEVICE void fake_quantize_loop(const RowArguments<Element>& a) {
  visit(a.quantizer, FakeQuantizeRows<Vector, Element>{a});
}

struct HadamardArguments {
  float* x;
  int64_t rows;
  int64_t n;
};

// The loops of hadamard_row are vectorized by the compiler: no lane depends on another.
template <typename Vector>
BA_HOST_DEVICE void hadamard_loop(const HadamardArguments& a) {
  const float factor = hadamard_factor(a.n);
  for (int64_t row = 0; row < a.rows; ++row) {
    hadamard_row(a.x + row * a.n, static_cast<int>(a.n), factor);
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
BA_DEFINE_FOR_CPUS(hadamard_rows, hadamard_loop, HadamardArguments)
BA_DEFINE_FOR_CPUS(absolute_max_f32, absolute_max_loop, MaxArguments<float>)
BA_DEFINE_FOR_CPUS(absolute_max_bf16, absolute_max_loop, MaxArguments<Bfloat16>)

}  // namespace

namespace {

Quantizer nvfp4_quantizer(Encoding encoding, float amax) {
  const float global_scale = nvfp4_served_global_scale(amax);
  switch (encoding) {
    case Encoding::kServed:
      return quantizer_of(Nvfp4Served{{global_scale}});
    case Encoding::kModelopt:
      return quantizer_of(Nvfp4Modelopt{{nvfp4_modelopt_global_scale(amax)}});
    case Encoding::kTensor:
      return quantizer_of(Nvfp4Tensor{{global_scale}});
    case Encoding::kFast:
      return quantizer_of(Nvfp4Fast{{global_scale}});
    case Encoding::kExact:
      return quantizer_of(Nvfp4Exact{{global_scale}});
  }
  return {};
}

Quantizer four_over_six_quantizer(const Format& format, float amax) {
  if (format.normaliser == 0) {
    return quantizer_of(Nvfp4FourOverSixCache{nvfp4_served_global_scale(amax), format.error});
  }
  const auto normaliser = static_cast<float>(format.normaliser);
  return quantizer_of(nvfp4_four_over_six_static(amax, normaliser, format.error));
}

Quantizer affine_quantizer(const Format& format, int bits) {
  const auto levels = static_cast<float>((1 << bits) - 1);
  const auto group = static_cast<int>(group_of(format));
  switch (format.arithmetic) {
    case Arithmetic::kBf16:
      return quantizer_of(IntAffine<Arithmetic::kBf16>{levels}, group);
    case Arithmetic::kFp16:
      return quantizer_of(IntAffine<Arithmetic::kFp16>{levels}, group);
    case Arithmetic::kFp32:
      return quantizer_of(IntAffine<Arithmetic::kFp32>{levels}, group);
  }
  return {};
}

}  // namespace

Quantizer make_quantizer(const Format& format, float amax) {
  const bool constant = format.scale == ScalePolicy::kConstant;
  if (constant) amax = format.kind == FormatKind::kFp8E5m2 ? kE5m2Max : kE4m3Max;
  BA_CHECK(std::isfinite(amax) && amax >= 0, "a calibrated amax must be finite and not negative");
  switch (format.kind) {
    case FormatKind::kBf16:
      return quantizer_of(Bf16Rounding{});
    case FormatKind::kFp8E4m3:
      if (format.granularity == Granularity::kTokenHead) return quantizer_of(Fp8TokenHead{});
      return quantizer_of(Fp8E4m3Rounding{fp8_scale(amax)});
    case FormatKind::kFp8E5m2:
      return quantizer_of(Fp8E5m2Rounding{fp8_e5m2_scale(amax)});
    case FormatKind::kNvfp4:
      return nvfp4_quantizer(format.encoding, amax);
    case FormatKind::kNvfp4FourOverSix:
      return four_over_six_quantizer(format, amax);
    case FormatKind::kMxfp4:
      return quantizer_of(Mxfp4{format.exponent});
    case FormatKind::kMxfp8:
      return quantizer_of(Mxfp8{format.exponent});
    case FormatKind::kMxint8:
      return quantizer_of(Mxint8{format.exponent});
    case FormatKind::kInt2:
      return affine_quantizer(format, 2);
    case FormatKind::kInt3:
      return affine_quantizer(format, 3);
    case FormatKind::kInt4:
      return affine_quantizer(format, 4);
    case FormatKind::kInt8:
      return affine_quantizer(format, 8);
    case FormatKind::kInt4TokenHead:
      return quantizer_of(Int4TokenHead{});
    case FormatKind::kInt8TokenHead:
      return quantizer_of(Int8TokenHead{});
  }
  check_failed(__FILE__, __LINE__, "kind has numerics", "a format kind without numerics");
}

void fake_quantize_cpu(const Quantizer& quantizer, const float* in, int64_t in_stride, float* out,
                       int64_t out_stride, int64_t rows, int64_t head_dim) {
  fake_quantize_f32({quantizer, in, in_stride, out, out_stride, rows, head_dim});
}

void fake_quantize_cpu(const Quantizer& quantizer, const Bfloat16* in, int64_t in_stride,
                       Bfloat16* out, int64_t out_stride, int64_t rows, int64_t head_dim) {
  fake_quantize_bf16({quantizer, in, in_stride, out, out_stride, rows, head_dim});
}

void hadamard_cpu(float* x, int64_t rows, int64_t n) { hadamard_rows({x, rows, n}); }

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
