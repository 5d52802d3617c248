// What the launches share: grid sizes and checked launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "common/status.h"

namespace bitalloc {

// Blocks for a grid-stride loop over `items`: as many as fill the device a few times over.
inline int grid_blocks(int64_t items, int threads) {
  int device = 0;
  int processors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    processors = 1;  // the launch reports what is wrong
  }
  const int64_t wanted = (items + threads - 1) / threads;
  return static_cast<int>(std::min<int64_t>(wanted, int64_t{processors} * 16));
}

// To be called right after a launch.
inline Status launch_status(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return internal_error(std::string("CUDA kernel ") + kernel + ": " + cudaGetErrorString(error));
}

}  // namespace bitalloc
