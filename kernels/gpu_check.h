// The little that GPU test programs need, so that they also build on a machine without GoogleTest:
// failed expectations are printed and counted; without a device the program says so and ends with
// 77, which ctest shows as skipped.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

namespace bitalloc::gpu_check {

constexpr int kSkipped = 77;

inline int& failures() {
  static int count = 0;
  return count;
}

inline void expect(bool condition, const std::string& what) {
  if (condition) return;
  if (++failures() <= 20) std::printf("FAILED: %s\n", what.c_str());
}

inline void expect_cuda(cudaError_t error, const char* what) {
  expect(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(error));
}

// Whether there is a GPU; says which, or why there is none.
inline bool device_found() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::printf("SKIPPED: no CUDA device (%s)\n", cudaGetErrorString(error));
    return false;
  }
  cudaDeviceProp properties;
  expect_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("device: %s, compute capability %d.%d\n", properties.name, properties.major,
              properties.minor);
  return true;
}

inline int exit_code() {
  std::printf(failures() == 0 ? "PASSED\n" : "%d expectations FAILED\n", failures());
  return failures() == 0 ? 0 : 1;
}

}  // namespace bitalloc::gpu_check
