// Numbers by chance that are the same with every compiler and library (the distributions of
// <random> are not): SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). The only source of chance in
// a simulation and in resampling.
#pragma once

#include <cstdint>

namespace bitalloc {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 … n − 1. REQUIRES: n > 0.
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  // True once in `n` times; never for 0.
  bool one_in(int64_t n) { return n > 0 && below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace bitalloc
