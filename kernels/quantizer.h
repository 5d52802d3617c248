// A format resolved to numbers: the plain struct that CPU loops and CUDA kernels share. C++17.
#pragma once

#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_e4m3.h"
#include "kernels/formats/nvfp4.h"

namespace bitalloc {

enum class Rounding { kBf16, kFp8E4m3, kNvfp4Served, kNvfp4Modelopt };

// Made by `make_quantizer` (kernels/fake_quant.h). Only the member of its rounding is meaningful.
struct Quantizer {
  Rounding rounding = Rounding::kBf16;
  Fp8Scale fp8_scale = {1.0f, 1.0f};
  float nvfp4_global_scale = 1.0f;
};

// Fake-quantizes 16 neighbours of one row (a block for NVFP4, just 16 values otherwise), or any
// part of them: `values` is all or one of them, `bmax` the largest magnitude of all, NaN if there
// is a NaN. `kRounding` must be quantizer.rounding; a template argument, so that loops hold no
// branch.
template <Rounding kRounding, typename Float>
BA_HOST_DEVICE Float fake_quantize_in_block(const Quantizer& quantizer, float bmax, Float values) {
  const float global_scale = quantizer.nvfp4_global_scale;
  if constexpr (kRounding == Rounding::kBf16) {
    return bf16_round(values);
  } else if constexpr (kRounding == Rounding::kFp8E4m3) {
    return fp8_fake_quantize(values, quantizer.fp8_scale);
  } else if constexpr (kRounding == Rounding::kNvfp4Served) {
    const float scale = nvfp4_block_scale(bmax, global_scale);
    const float reciprocal = nvfp4_served_reciprocal(scale, global_scale);
    return nvfp4_served_element(values, reciprocal, scale, global_scale);
  } else {
    const float scale = nvfp4_modelopt_effective_scale(bmax, global_scale);
    return nvfp4_modelopt_element(values, scale);
  }
}

// Whether a rounding looks at bmax.
template <Rounding kRounding>
constexpr bool kNeedsBlockMax =
    kRounding == Rounding::kNvfp4Served || kRounding == Rounding::kNvfp4Modelopt;

}  // namespace bitalloc
