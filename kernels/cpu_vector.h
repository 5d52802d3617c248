// Vectors of 16 floats for the CPU loops (GCC vector extensions): one AVX-512 register, two of
// AVX2, four of SSE, as the function's instruction set has them. The arithmetic of a lane is that
// of a float, so results do not depend on the instruction set where no product is fused.
#pragma once

#include "kernels/bf16.h"
#include "kernels/numerics.h"

// Compiles a function once per instruction set; the loader picks (GNU ifunc). Not under sanitizers:
// the resolvers would run before their runtime is up.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BA_CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define BA_CPU_CLONES
#endif

namespace bitalloc {

constexpr int kLanes = 16;

using Float16 = float __attribute__((vector_size(64)));
using Bits16 = uint32_t __attribute__((vector_size(64)));

template <>
struct BitsOf<Float16> {
  using type = Bits16;
};
template <>
struct FloatOf<Bits16> {
  using type = Float16;
};

BA_HOST_DEVICE Float16 broadcast(float value) { return Float16{} + value; }

BA_HOST_DEVICE Float16 load_16(const float* from) {
  Float16 values;
  memcpy(&values, from, sizeof values);
  return values;
}

BA_HOST_DEVICE Float16 load_16(const Bfloat16* from) {
  using Half16 = uint16_t __attribute__((vector_size(32)));
  Half16 halves;
  memcpy(&halves, from, sizeof halves);
  return float_from_bits(__builtin_convertvector(halves, Bits16) << 16);
}

BA_HOST_DEVICE void store_16(Float16 values, float* to) { memcpy(to, &values, sizeof values); }

BA_HOST_DEVICE void store_16(Float16 values, Bfloat16* to) {
  using Half16 = uint16_t __attribute__((vector_size(32)));
  const Half16 halves = __builtin_convertvector(bf16_bits(values), Half16);
  memcpy(to, &halves, sizeof halves);
}

// The first `count` < 16 from memory, zeros behind them.
template <typename Element>
BA_HOST_DEVICE Float16 load_some(const Element* from, int64_t count) {
  Element padded[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = from[i];
  return load_16(padded);
}

template <typename Element>
BA_HOST_DEVICE void store_some(Float16 values, Element* to, int64_t count) {
  Element padded[kLanes];
  store_16(values, padded);
  for (int64_t i = 0; i < count; ++i) to[i] = padded[i];
}

// Largest of the lanes, by halves.
BA_HOST_DEVICE uint32_t largest_lane(Bits16 bits) {
  using Bits8 = uint32_t __attribute__((vector_size(32)));
  using Bits4 = uint32_t __attribute__((vector_size(16)));
  Bits8 halves[2];
  memcpy(halves, &bits, sizeof halves);
  const Bits8 eight = halves[0] > halves[1] ? halves[0] : halves[1];
  Bits4 quarters[2];
  memcpy(quarters, &eight, sizeof quarters);
  const Bits4 four = quarters[0] > quarters[1] ? quarters[0] : quarters[1];
  const uint32_t low = four[0] > four[1] ? four[0] : four[1];
  const uint32_t high = four[2] > four[3] ? four[2] : four[3];
  return low > high ? low : high;
}

// 16 sums in float64.
struct Sum16 {
  using Double16 = double __attribute__((vector_size(128)));
  Double16 lanes = {};

  BA_HOST_DEVICE void add(Float16 values) { lanes += __builtin_convertvector(values, Double16); }
  BA_HOST_DEVICE void scale(Float16 factors) {
    lanes *= __builtin_convertvector(factors, Double16);
  }
  // In the order of the lanes.
  BA_HOST_DEVICE double total() const {
    double sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
    return sum;
  }
};

}  // namespace bitalloc
