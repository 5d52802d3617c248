// A group (group.h) in the vector registers of a CPU. A lane computes what ScalarGroup's loop does;
// sums add neighbours first, so that every width gives the same tree.
#pragma once

#include "kernels/cpu_vector.h"
#include "kernels/group.h"

namespace bitalloc {

template <typename Vector>
BA_HOST_DEVICE typename Vector::Bits lane_numbers() {
  typename Vector::Bits lanes;
  for (uint32_t i = 0; i < Vector::kWidth; ++i) lanes[i] = i;
  return lanes;
}

// Lanes 2i and 2i+1 swapped for step 1, pairs of them for step 2, and so on.
template <typename Vector>
BA_HOST_DEVICE typename Vector::Float exchanged(typename Vector::Float x, uint32_t step) {
  return __builtin_shuffle(x, lane_numbers<Vector>() ^ step);
}

template <typename Vector>
BA_HOST_DEVICE float tree_sum(typename Vector::Float x) {
  for (uint32_t step = 1; step < Vector::kWidth; step *= 2) x += exchanged<Vector>(x, step);
  return x[0];
}

template <typename Vector>
BA_HOST_DEVICE float least_lane(typename Vector::Float x) {
  for (uint32_t step = 1; step < Vector::kWidth; step *= 2) {
    const auto other = exchanged<Vector>(x, step);
    x = x < other ? x : other;
  }
  return x[0];
}

// kSize: elements of a whole group, a multiple of 16; 0: said at run time, up to kLongestGroup.
template <typename Vector, int kSize>
class VectorGroup {
 public:
  using Float = typename Vector::Float;
  using Scalar = float;

  // `size` elements, at least 1 and at most a whole group; whole vectors are read, so that `from`
  // goes on, after them, with copies of the first element (which change no extreme).
  template <typename Element>
  BA_HOST_DEVICE VectorGroup(const Element* from, int size) : size_(size) {
    parts_[0] = load<Vector>(from);
    for (int i = 1; i < parts(); ++i) parts_[i] = load<Vector>(from + i * kWidth);
  }

  // Writes whole vectors.
  template <typename Element>
  BA_HOST_DEVICE void save(Element* to) const {
    for (int i = 0; i < parts(); ++i) store<Vector>(parts_[i], to + i * kWidth);
  }

  BA_HOST_DEVICE int size() const { return size_; }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE float largest(F f, Scalars... scalars) const {
    typename Vector::Bits bits = {};
    for (int i = 0; i < parts(); ++i)
      bits = larger_bits(bits, magnitude_bits(f(parts_[i], broadcast<Vector>(scalars)...)));
    return float_from_bits(largest_lane(bits));
  }
  BA_HOST_DEVICE float largest() const {
    return largest([](Float x) BA_INLINE { return x; });
  }

  BA_HOST_DEVICE float minimum() const { return least(1.0f); }
  BA_HOST_DEVICE float maximum() const { return -least(-1.0f); }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE float sum(F f, Scalars... scalars) const {
    float sums[kMostParts];
    for (int i = 0; i < parts(); ++i) {
      Float terms = f(parts_[i], broadcast<Vector>(scalars)...);
      if (size_ < (i + 1) * kWidth) {
        const auto lanes = lane_numbers<Vector>() + static_cast<uint32_t>(i * kWidth);
        terms = lanes < static_cast<uint32_t>(size_) ? terms : Float{};
      }
      sums[i] = tree_sum<Vector>(terms);
    }
    for (int step = 1; step < parts(); step *= 2) {
      for (int i = 0; i + step < parts(); i += 2 * step) sums[i] += sums[i + step];
    }
    return sums[0];
  }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE void map(F f, Scalars... scalars) {
    for (int i = 0; i < parts(); ++i) parts_[i] = f(parts_[i], broadcast<Vector>(scalars)...);
  }

 private:
  static constexpr int kWidth = Vector::kWidth;
  static constexpr int kMostParts = (kSize > 0 ? kSize : kLongestGroup) / kWidth;

  BA_HOST_DEVICE int parts() const {
    return kSize > 0 ? kMostParts : (size_ + kWidth - 1) / kWidth;
  }

  // The smallest of sign·x, sign ±1.
  BA_HOST_DEVICE float least(float sign) const {
    Float least = parts_[0] * sign;
    for (int i = 1; i < parts(); ++i) {
      const Float other = parts_[i] * sign;
      least = least < other ? least : other;
    }
    return largest() <= float_from_bits(kInfinityBits) ? least_lane<Vector>(least)
                                                       : sign * quiet_nan();
  }

  int size_;
  Float parts_[kMostParts];
};

// The lanes of a vector in memory, from where a broadcast is one load.
template <typename Vector>
struct Lanes {
  BA_HOST_DEVICE explicit Lanes(typename Vector::Float x) { store<Vector>(x, values); }
  BA_HOST_DEVICE typename Vector::Float operator[](int i) const {
#if defined(__x86_64__)
    // GCC 12 would keep `values` in a register and put the broadcast together lane by lane.
    if constexpr (Vector::kWidth > 4) {
      typename Vector::Float all;
      __asm__("vbroadcastss %1, %0" : "=v"(all) : "m"(values[i]));
      return all;
    }
#endif
    return broadcast<Vector>(values[i]);
  }

  float values[Vector::kWidth];
};

// Lane i of the result: vectors[i] reduced by `op`, neighbours first. vectors: [kWidth], destroyed.
template <typename Vector, typename Values, typename Op>
BA_HOST_DEVICE Values reduce_each(Values* vectors, Op op) {
  const auto lanes = lane_numbers<Vector>();
  int count = Vector::kWidth;
#pragma GCC unroll 4
  for (uint32_t step = 1; step < Vector::kWidth; step *= 2) {
    count /= 2;
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const Values a = vectors[2 * i];
      const Values b = vectors[2 * i + 1];
      const auto from_b = (lanes & step) * (Vector::kWidth / step);
      vectors[i] = op(__builtin_shuffle(a, b, lanes + from_b),
                      __builtin_shuffle(a, b, (lanes ^ step) + from_b));
    }
  }
  return vectors[0];
}

// As many whole groups of kSize elements as a vector has lanes: lane i of a Scalar is group i's.
// Elements stay in memory: map() reads `in` and writes `out`, once, and comes last.
template <typename Vector, int kSize, typename Element>
class VectorBatch {
 public:
  using Scalar = typename Vector::Float;
  static constexpr int kGroups = Vector::kWidth;

  // [kGroups] where each group starts, of each.
  BA_HOST_DEVICE VectorBatch(const Element* const* in, Element* const* out) : in_(in), out_(out) {}

  BA_HOST_DEVICE int size() const { return kSize; }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE Scalar largest(F f, Scalars... scalars) const {
    return largest_in_memory(f, Lanes<Vector>(scalars)...);
  }
  BA_HOST_DEVICE Scalar largest() const {
    return largest([](auto x) BA_INLINE { return x; });
  }

  BA_HOST_DEVICE Scalar minimum() const { return least(1.0f); }
  BA_HOST_DEVICE Scalar maximum() const { return -least(-1.0f); }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE Scalar sum(F f, Scalars... scalars) const {
    return sum_in_memory(f, Lanes<Vector>(scalars)...);
  }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE void map(F f, Scalars... scalars) {
    map_in_memory(f, Lanes<Vector>(scalars)...);
  }

 private:
  static constexpr int kWidth = Vector::kWidth;
  static constexpr int kParts = kSize / kWidth;

  BA_HOST_DEVICE Scalar part(int i, int k) const { return load<Vector>(in_[i] + k * kWidth); }

  template <typename F, typename... AllLanes>
  BA_HOST_DEVICE Scalar largest_in_memory(F f, const AllLanes&... scalars) const {
    typename Vector::Bits bits[kGroups];
#pragma GCC unroll 16
    for (int i = 0; i < kGroups; ++i) {
      bits[i] = magnitude_bits(f(part(i, 0), scalars[i]...));
      for (int k = 1; k < kParts; ++k) {
        bits[i] = larger_bits(bits[i], magnitude_bits(f(part(i, k), scalars[i]...)));
      }
    }
    const auto larger = [](auto a, auto b) BA_INLINE { return larger_bits(a, b); };
    return float_from_bits(reduce_each<Vector>(bits, larger));
  }

  template <typename F, typename... AllLanes>
  BA_HOST_DEVICE Scalar sum_in_memory(F f, const AllLanes&... scalars) const {
    Scalar sums[kParts];
    for (int k = 0; k < kParts; ++k) {
      Scalar terms[kGroups];
#pragma GCC unroll 16
      for (int i = 0; i < kGroups; ++i) terms[i] = f(part(i, k), scalars[i]...);
      sums[k] = reduce_each<Vector>(terms, [](auto a, auto b) BA_INLINE { return a + b; });
    }
    for (int step = 1; step < kParts; step *= 2) {
      for (int k = 0; k + step < kParts; k += 2 * step) sums[k] += sums[k + step];
    }
    return sums[0];
  }

  template <typename F, typename... AllLanes>
  BA_HOST_DEVICE void map_in_memory(F f, const AllLanes&... scalars) {
#pragma GCC unroll 16
    for (int i = 0; i < kGroups; ++i) {
      for (int k = 0; k < kParts; ++k) {
        store<Vector>(f(part(i, k), scalars[i]...), out_[i] + k * kWidth);
      }
    }
  }

  BA_HOST_DEVICE Scalar least(float sign) const {
    const auto less = [](auto a, auto b) BA_INLINE { return a < b ? a : b; };
    Scalar least[kGroups];
    for (int i = 0; i < kGroups; ++i) {
      least[i] = part(i, 0) * sign;
      for (int k = 1; k < kParts; ++k) least[i] = less(least[i], part(i, k) * sign);
    }
    const Scalar found = reduce_each<Vector>(least, less);
    return largest() <= float_from_bits(kInfinityBits) ? found
                                                       : broadcast<Vector>(sign * quiet_nan());
  }

  const Element* const* in_;
  Element* const* out_;
};

}  // namespace bitalloc
