// Half-quadratic quantization: integers in groups whose zero point is found by iteration, as hqq
// 0.2.8.post1 does on a CPU in float32 (Badri and Shaji, 2023; hqq/core/{quantize,optimize}.py).
// b + 2·m/group bits a value, m the bits in which scale and zero are kept.
//
//   S = (2^b − 1)/(hi − lo), 1 where hi − lo <= 1e-4, at most 2e4;  z = −lo·S at first
//   c_i = round(x_i·S + z) in 0 … 2^b − 1,  value_i = (c_i − z)·(1/S)
//   step: r = x − (c − z)/S,  e = sign(r)·max(|r| − |r|^(p−1)/β, 0),  z = mean of c − (x − e)·S
//   over
//         the group;  p = 0.7, β = 10
//
// It stops when the mean of |r| over the *whole* call no longer falls: what comes out depends on
// which values are given together. Not thread-bound; no state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"

namespace bitalloc {

enum class HqqSolver {
  kLegacy,  // hqq's default: β stays; the zeros of the step after the last check are returned
  kV2,      // β grows by 1.01 a step; the zeros of the smallest mean are returned
};

enum class HqqAxis {
  kStrided = 0,     // hqq's axis 0: group g holds the values g, g + n/group, g + 2·n/group, …
  kContiguous = 1,  // hqq's axis 1: neighbours
};

struct HqqOptions {
  int bits = 4;  // 1, 2, 3, 4 or 8
  int group = 64;
  HqqAxis axis = HqqAxis::kContiguous;
  HqqSolver solver = HqqSolver::kLegacy;
  int iterations = 20;  // at most
};

struct HqqTensor {
  HqqOptions options;
  std::vector<uint8_t> codes;  // in the order of the values
  std::vector<float> scales;   // [n/group]: 1/S
  std::vector<float> zeros;    // [n/group]
};

// Groups with NaN, infinities or a range beyond float32 get a NaN scale and codes 0, and do not
// count in the mean. Errors: kInvalidArgument naming bits, group, iterations or values (a count
// that is no multiple of the group).
Result<HqqTensor> hqq_quantize(std::span<const float> values, const HqqOptions& options);
std::vector<float> hqq_dequantize(const HqqTensor& tensor);

}  // namespace bitalloc
