// A format resolved to numbers: the plain struct that CPU loops and CUDA kernels share. C++17.
#pragma once

#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_e4m3.h"
#include "kernels/formats/fp8_e5m2.h"
#include "kernels/formats/fp8_token_head.h"
#include "kernels/formats/int4_token_head.h"
#include "kernels/formats/int8_token_head.h"
#include "kernels/formats/int_affine.h"
#include "kernels/formats/mx.h"
#include "kernels/formats/nvfp4.h"
#include "kernels/formats/nvfp4_dialects.h"
#include "kernels/formats/nvfp4_four_over_six.h"

namespace bitalloc {

// Every struct of numerics (kernels/formats/): enumerator, struct, member of Quantizer.
#define BA_EVERY_ROUNDING(X)                                                     \
  X(kBf16, Bf16Rounding, bf16)                                                   \
  X(kFp8E4m3, Fp8E4m3Rounding, fp8_e4m3)                                         \
  X(kFp8E5m2, Fp8E5m2Rounding, fp8_e5m2)                                         \
  X(kFp8TokenHead, Fp8TokenHead, fp8_token_head)                                 \
  X(kNvfp4Served, Nvfp4Served, nvfp4_served)                                     \
  X(kNvfp4Modelopt, Nvfp4Modelopt, nvfp4_modelopt)                               \
  X(kNvfp4Tensor, Nvfp4Tensor, nvfp4_tensor)                                     \
  X(kNvfp4Fast, Nvfp4Fast, nvfp4_fast)                                           \
  X(kNvfp4Exact, Nvfp4Exact, nvfp4_exact)                                        \
  X(kNvfp4FourOverSixCache, Nvfp4FourOverSixCache, nvfp4_four_over_six_cache)    \
  X(kNvfp4FourOverSixStatic, Nvfp4FourOverSixStatic, nvfp4_four_over_six_static) \
  X(kMxfp4, Mxfp4, mxfp4)                                                        \
  X(kMxfp8, Mxfp8, mxfp8)                                                        \
  X(kMxint8, Mxint8, mxint8)                                                     \
  X(kIntBf16, IntAffine<Arithmetic::kBf16>, int_bf16)                            \
  X(kIntFp16, IntAffine<Arithmetic::kFp16>, int_fp16)                            \
  X(kIntFp32, IntAffine<Arithmetic::kFp32>, int_fp32)                            \
  X(kInt4TokenHead, Int4TokenHead, int4_token_head)                              \
  X(kInt8TokenHead, Int8TokenHead, int8_token_head)

#define BA_ENUMERATOR(name, Type, member) name,
#define BA_MEMBER(name, Type, member) Type member;
#define BA_SETTER(name, Type, member) \
  void set(const Type& value) {       \
    rounding = Rounding::name;        \
    member = value;                   \
  }
#define BA_VISIT_CASE(name, Type, member) \
  case Rounding::name:                    \
    return visitor(quantizer.member);

enum class Rounding { BA_EVERY_ROUNDING(BA_ENUMERATOR) };

// Made by `make_quantizer` (kernels/fake_quant.h). Only the member of its rounding is meaningful.
struct Quantizer {
  Rounding rounding = Rounding::kBf16;
  int group = 0;  // neighbours of a row that share a scale, where the struct's kGroup is 0; 0: all
  union {
    Bf16Rounding unused = {};
    BA_EVERY_ROUNDING(BA_MEMBER)
  };
  BA_EVERY_ROUNDING(BA_SETTER)
};

template <typename Numerics>
Quantizer quantizer_of(const Numerics& numerics, int group = 0) {
  Quantizer quantizer;
  quantizer.group = group;
  quantizer.set(numerics);
  return quantizer;
}

// visitor(struct of numerics).
template <typename Visitor>
inline __attribute__((always_inline)) auto visit(const Quantizer& quantizer, Visitor visitor) {
  switch (quantizer.rounding) { BA_EVERY_ROUNDING(BA_VISIT_CASE) }
  return visitor(quantizer.bf16);
}

#undef BA_ENUMERATOR
#undef BA_MEMBER
#undef BA_SETTER
#undef BA_VISIT_CASE

}  // namespace bitalloc
