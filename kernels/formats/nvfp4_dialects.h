// The rarer dialects of NVFP4: layout, names of variables and special values as in nvfp4.h, 4.5
// bits a value, g given (k_scale).
//
// kTensor (Nvfp4Tensor), ModelOpt's NVFP4QTensor with double_scale g:
//   s = E4M3(max(bmax/(6·g), 2^-9)), E4M3(1) for a block of zeros: never 0
//   c_i = E2M1(x_i/(s·g)),  y_i = E2M1(c_i)·(s·g)
//   Other codes than kServed's only where the rounding of r moves x_i·r across a tie (for g = 1 one
//   code of 2,400 in random bfloat16 blocks), and below s = 2^-9. torchao 0.18.0 is between them:
//   it multiplies with (1/g)/s, and keeps s at 2^-6 or above.
//
// kFast (Nvfp4Fast), the store kernels of vLLM (nvfp4_utils.cuh) and, with fast math, of
// TensorRT-LLM and FlashInfer; ~ marks rcp.approx.ftz:
//   s = E4M3((1/g)·(bmax·(1~6))),  r = 1~(s·(1~(1/g))), 0 where s is 0;  then as kServed
//   On a GPU with that GPU's approximate reciprocals, on a CPU with correctly rounded ones: the two
//   may differ where that moves a tie of E4M3 or E2M1. Allowed are 1 value in 1,000
//   (kernels_cuda_test). Values as kServed's y_i: what FP8 attention reads is not modelled.
//
// kExact (Nvfp4Exact), Transformer Engine with fast math off (core_nvfp4.cuh before its
// quantization multiplied with (1/g)·(1/6)), and TensorRT-LLM and FlashInfer with
// DISABLE_FP4_QUANT_FAST_MATH:
//   s = E4M3(min((bmax/6)·(1/g), FLT_MAX)),  r = min(1/(s·(1/(1/g))), FLT_MAX);  then as kServed
//   Equal to kServed bit for bit where g is a power of two. Elsewhere products are rounded in other
//   places, which moves ties of the E4M3 scale: for g = 0.3, 1 block in 2,000.
#pragma once

#include "kernels/formats/nvfp4.h"
#include "kernels/group.h"

namespace bitalloc {

struct Nvfp4Tensor : Nvfp4Dividing {
  template <typename Group>
  BA_HOST_DEVICE typename Group::Scalar block_scale(const Group& group) const {
    constexpr float kSmallest = 0.001953125f;  // 2^-9
    using Scalar = typename Group::Scalar;
    const Scalar raw = divide_rounded(group.largest(), multiply_rounded(kE2m1Max, global_scale));
    const Scalar nonzero = raw == 0.0f ? spread<Scalar>(1.0f) : raw;
    return e4m3_round(at_least(nonzero, kSmallest));
  }
  template <typename Scalar>
  BA_HOST_DEVICE Scalar factor(Scalar scale) const {
    return multiply_rounded(scale, global_scale);
  }
  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    nvfp4_fake_quantize(*this, group);
  }
};

// About 1/value: a GPU's rcp.approx.ftz; correctly rounded on a CPU.
template <typename Scalar>
BA_HOST_DEVICE Scalar approximate_reciprocal(Scalar value) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
#else
  return divide_rounded(spread<Scalar>(1.0f), value);
#endif
}

struct Nvfp4Fast : Nvfp4Multiplying {
  template <typename Group>
  BA_HOST_DEVICE typename Group::Scalar block_scale(const Group& group) const {
    using Scalar = typename Group::Scalar;
    const Scalar sixth = multiply_rounded(group.largest(), approximate_reciprocal(kE2m1Max));
    return e4m3_round(multiply_rounded(sixth, divide_rounded(1.0f, global_scale)));
  }
  template <typename Scalar>
  BA_HOST_DEVICE Scalar factor(Scalar scale) const {
    const float g = approximate_reciprocal(divide_rounded(1.0f, global_scale));
    const Scalar r = approximate_reciprocal(multiply_rounded(scale, g));
    return scale == 0.0f ? Scalar{} : at_most(r, 3.402823466e+38f);
  }
  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    nvfp4_fake_quantize(*this, group);
  }
};

struct Nvfp4Exact : Nvfp4Multiplying {
  template <typename Group>
  BA_HOST_DEVICE typename Group::Scalar block_scale(const Group& group) const {
    const auto sixth = divide_rounded(group.largest(), kE2m1Max);
    return e4m3_round(multiply_rounded(sixth, divide_rounded(1.0f, global_scale)));
  }
  template <typename Scalar>
  BA_HOST_DEVICE Scalar factor(Scalar scale) const {
    return nvfp4_served_reciprocal(scale, divide_rounded(1.0f, divide_rounded(1.0f, global_scale)));
  }
  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    nvfp4_fake_quantize(*this, group);
  }
};

}  // namespace bitalloc
