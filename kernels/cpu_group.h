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

  // `size` elements, at least 1 and at most a whole group; whole vectors are read, so that `from`
  // goes on, after them, with copies of the first element (which change no extreme).
  template <typename Element>
  BA_HOST_DEVICE VectorGroup(const Element* from, int size) : size_(size) {
    for (int i = 0; i < parts(); ++i) parts_[i] = load<Vector>(from + i * kWidth);
  }

  // Writes whole vectors.
  template <typename Element>
  BA_HOST_DEVICE void save(Element* to) const {
    for (int i = 0; i < parts(); ++i) store<Vector>(parts_[i], to + i * kWidth);
  }

  BA_HOST_DEVICE int size() const { return size_; }

  template <typename F>
  BA_HOST_DEVICE float largest(F f) const {
    typename Vector::Bits bits = {};
    for (int i = 0; i < parts(); ++i) bits = larger_bits(bits, magnitude_bits(f(parts_[i])));
    return float_from_bits(largest_lane(bits));
  }
  BA_HOST_DEVICE float largest() const {
    return largest([](Float x) BA_INLINE { return x; });
  }

  BA_HOST_DEVICE float minimum() const { return least(1.0f); }
  BA_HOST_DEVICE float maximum() const { return -least(-1.0f); }

  template <typename F>
  BA_HOST_DEVICE float sum(F f) const {
    float sums[kMostParts];
    for (int i = 0; i < parts(); ++i) {
      Float terms = f(parts_[i]);
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

  template <typename F>
  BA_HOST_DEVICE void map(F f) {
    for (int i = 0; i < parts(); ++i) parts_[i] = f(parts_[i]);
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

}  // namespace bitalloc
