// Vectors of floats for the CPU loops (GCC vector extensions), as wide as the machine's registers:
// 16 (AVX-512), 8 (AVX2) or 4 (SSE2, NEON). A lane computes as a float does.
//
// Loops are templates over one of the three structs below; BA_DEFINE_FOR_CPUS compiles a loop once
// for each and picks by the machine at run time.
#pragma once

#include "kernels/formats/bf16.h"
#include "kernels/numerics.h"

namespace bitalloc {

struct Vector16 {
  static constexpr int kWidth = 16;
  using Float = float __attribute__((vector_size(64)));
  using Bits = uint32_t __attribute__((vector_size(64)));
  using Half = uint16_t __attribute__((vector_size(32)));
  using Double = double __attribute__((vector_size(128)));
};

struct Vector8 {
  static constexpr int kWidth = 8;
  using Float = float __attribute__((vector_size(32)));
  using Bits = uint32_t __attribute__((vector_size(32)));
  using Half = uint16_t __attribute__((vector_size(16)));
  using Double = double __attribute__((vector_size(64)));
};

struct Vector4 {
  static constexpr int kWidth = 4;
  using Float = float __attribute__((vector_size(16)));
  using Bits = uint32_t __attribute__((vector_size(16)));
  using Half = uint16_t __attribute__((vector_size(8)));
  using Double = double __attribute__((vector_size(32)));
};

template <>
struct BitsOf<Vector16::Float> {
  using type = Vector16::Bits;
};
template <>
struct FloatOf<Vector16::Bits> {
  using type = Vector16::Float;
};
template <>
struct BitsOf<Vector8::Float> {
  using type = Vector8::Bits;
};
template <>
struct FloatOf<Vector8::Bits> {
  using type = Vector8::Float;
};
template <>
struct BitsOf<Vector4::Float> {
  using type = Vector4::Bits;
};
template <>
struct FloatOf<Vector4::Bits> {
  using type = Vector4::Float;
};

template <typename Vector>
BA_HOST_DEVICE typename Vector::Float broadcast(float value) {
  return value - typename Vector::Float{};  // folded away, unlike + 0
}

template <typename Vector>
BA_HOST_DEVICE typename Vector::Float load(const float* from) {
  typename Vector::Float values;
  memcpy(&values, from, sizeof values);
  return values;
}

template <typename Vector>
BA_HOST_DEVICE typename Vector::Float load(const Bfloat16* from) {
  typename Vector::Half halves;
  memcpy(&halves, from, sizeof halves);
  return float_from_bits(__builtin_convertvector(halves, typename Vector::Bits) << 16);
}

#if defined(__x86_64__)
// GCC 12 makes two halves of these conversions.
template <>
BA_HOST_DEVICE Vector16::Float load<Vector16>(const Bfloat16* from) {
  Vector16::Bits bits;
  const auto& halves = *reinterpret_cast<const Bfloat16(*)[16]>(from);
  __asm__("vpmovzxwd %1, %0" : "=v"(bits) : "m"(halves));
  return float_from_bits(bits << 16);
}
#endif

template <typename Vector>
BA_HOST_DEVICE void store(typename Vector::Float values, float* to) {
  memcpy(to, &values, sizeof values);
}

template <typename Vector>
BA_HOST_DEVICE void store(typename Vector::Float values, Bfloat16* to) {
  const auto halves = __builtin_convertvector(bf16_bits(values), typename Vector::Half);
  memcpy(to, &halves, sizeof halves);
}

#if defined(__x86_64__)
template <>
BA_HOST_DEVICE void store<Vector16>(Vector16::Float values, Bfloat16* to) {
  auto& halves = *reinterpret_cast<Bfloat16(*)[16]>(to);
  __asm__("vpmovdw %1, %0" : "=m"(halves) : "v"(bf16_bits(values)));
}
#endif

template <typename Bits>
BA_HOST_DEVICE Bits larger_bits(Bits a, Bits b) {
  return a > b ? a : b;
}

// The largest lane, by halves.
BA_HOST_DEVICE uint32_t largest_lane(Vector4::Bits bits) {
  const uint32_t low = larger_bits<uint32_t>(bits[0], bits[1]);
  return larger_bits(low, larger_bits<uint32_t>(bits[2], bits[3]));
}

BA_HOST_DEVICE uint32_t largest_lane(Vector8::Bits bits) {
  Vector4::Bits halves[2];
  memcpy(halves, &bits, sizeof halves);
  return largest_lane(larger_bits(halves[0], halves[1]));
}

BA_HOST_DEVICE uint32_t largest_lane(Vector16::Bits bits) {
  Vector8::Bits halves[2];
  memcpy(halves, &bits, sizeof halves);
  return largest_lane(larger_bits(halves[0], halves[1]));
}

// A float64 sum a lane.
template <typename Vector>
struct LaneSums {
  using Double = typename Vector::Double;
  Double lanes = {};

  BA_HOST_DEVICE void add(typename Vector::Float values) {
    lanes += __builtin_convertvector(values, Double);
  }
  BA_HOST_DEVICE void scale(typename Vector::Float factors) {
    lanes *= __builtin_convertvector(factors, Double);
  }
  // In the order of the lanes.
  BA_HOST_DEVICE double total() const {
    double sum = 0;
    for (int lane = 0; lane < Vector::kWidth; ++lane) sum += lanes[lane];
    return sum;
  }
};

}  // namespace bitalloc

#if defined(__x86_64__)
#define BA_TARGET_AVX512 __attribute__((target("arch=x86-64-v4")))
#define BA_TARGET_AVX2 __attribute__((target("arch=x86-64-v3")))
#define BA_CPU_HAS_AVX512 __builtin_cpu_supports("x86-64-v4")
#define BA_CPU_HAS_AVX2 __builtin_cpu_supports("x86-64-v3")
#else
#define BA_TARGET_AVX512
#define BA_TARGET_AVX2
#define BA_CPU_HAS_AVX512 false
#define BA_CPU_HAS_AVX2 false
#endif

// Defines `void name(const Arguments&)`, which runs `loop<Vector>(arguments)` with the widest
// Vector of this machine. `loop` and all it calls must be BA_HOST_DEVICE (always inlined).
#define BA_DEFINE_FOR_CPUS(name, loop, Arguments)                                                \
  BA_TARGET_AVX512 void name##_avx512(const Arguments& arguments) { loop<Vector16>(arguments); } \
  BA_TARGET_AVX2 void name##_avx2(const Arguments& arguments) { loop<Vector8>(arguments); }      \
  void name##_base(const Arguments& arguments) { loop<Vector4>(arguments); }                     \
  void name(const Arguments& arguments) {                                                        \
    static const auto chosen = BA_CPU_HAS_AVX512 ? name##_avx512                                 \
                               : BA_CPU_HAS_AVX2 ? name##_avx2                                   \
                                                 : name##_base;                                  \
    chosen(arguments);                                                                           \
  }
