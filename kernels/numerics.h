// What the format headers share: one function for host and device, bit casts, rounding to a grid.
//
// C++17, no torch. Compile host code that includes it with -ffp-contract=off (the CMake target
// `bitalloc_kernels` says so to its users): a product fused into the following sum would round once
// where the formats round twice. On the device `multiply_rounded` keeps nvcc from fusing.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define BA_HOST_DEVICE __host__ __device__ __forceinline__
#else
// always_inline: the callers are cloned per instruction set, and a call would leave the clone.
#define BA_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace bitalloc {

// The unsigned integer that holds a float's bits, and back. The functions below are templates over
// `Float`: float, and on the CPU also a vector of 16 of them (kernels/cpu_vector.h).
template <typename Float>
struct BitsOf;
template <typename Bits>
struct FloatOf;
template <>
struct BitsOf<float> {
  using type = uint32_t;
};
template <>
struct FloatOf<uint32_t> {
  using type = float;
};

template <typename Float>
BA_HOST_DEVICE typename BitsOf<Float>::type float_bits(Float value) {
  typename BitsOf<Float>::type bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

template <typename Bits>
BA_HOST_DEVICE typename FloatOf<Bits>::type float_from_bits(Bits bits) {
  typename FloatOf<Bits>::type value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kMagnitudeBits = 0x7FFFFFFFu;
constexpr uint32_t kInfinityBits = 0x7F800000u;

// |value| as an integer that orders as the magnitudes do, with every NaN above infinity: a maximum
// over these integers does not depend on order and cannot lose a NaN.
template <typename Float>
BA_HOST_DEVICE typename BitsOf<Float>::type magnitude_bits(Float value) {
  return float_bits(value) & kMagnitudeBits;
}

template <typename Float>
BA_HOST_DEVICE Float magnitude_of(Float value) {
  return float_from_bits(magnitude_bits(value));
}

template <typename Float>
BA_HOST_DEVICE Float with_sign_of(Float magnitude, Float sign) {
  return float_from_bits(magnitude_bits(magnitude) | (float_bits(sign) & kSignBit));
}

// Both keep NaN, unlike fminf and fmaxf.
template <typename Float>
BA_HOST_DEVICE Float at_most(Float value, float limit) {
  const Float bound = limit - Float{};
  return bound < value ? bound : value;
}
template <typename Float>
BA_HOST_DEVICE Float at_least(Float value, float limit) {
  const Float bound = limit - Float{};
  return bound > value ? bound : value;
}

// a·b rounded to float32, never fused into a sum. `b`: a Float or a float.
template <typename Float, typename Factor>
BA_HOST_DEVICE Float multiply_rounded(Float a, Factor b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// a/b correctly rounded, whatever -use_fast_math says. `b`: a Float or a float.
template <typename Float, typename Divisor>
BA_HOST_DEVICE Float divide_rounded(Float a, Divisor b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// Rounds a magnitude (>= 0; NaN stays NaN) to `mantissa_bits` after the leading one, to nearest,
// ties to even; below 2^min_exponent the step stays that of 2^min_exponent (subnormals).
//
// (m + c) - c with c = 2^(exponent + 23 - mantissa_bits): the sum lies in [c, 2c), where float32
// has exactly the wanted step, so the addition rounds to it; the subtraction is exact. Wants
// magnitudes below 2^100.
template <typename Float>
BA_HOST_DEVICE Float round_magnitude(Float magnitude, int mantissa_bits, int min_exponent) {
  const uint32_t smallest = static_cast<uint32_t>(127 + min_exponent) << 23;
  const auto exponent = float_bits(magnitude) & kInfinityBits;
  const auto bounded = exponent < smallest ? smallest : exponent;
  const Float c = float_from_bits(bounded + (static_cast<uint32_t>(23 - mantissa_bits) << 23));
  return (magnitude + c) - c;
}

}  // namespace bitalloc
