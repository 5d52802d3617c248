// Names and costs of number formats and candidates: what the coordinator, the solver and the
// command line need to know about a format. The numerics are in the headers beside this one; what
// there is stands in catalogue.cc.
//
// Canonical names: `bf16`, `fp8_e4m3`, `nvfp4`; parameters that differ from the format's defaults
// follow in brackets: `nvfp4[encoding=modelopt]`, `int4[group=32,axis=channel]`. A candidate of a
// KV site is a pair `K/V`, e.g. `fp8_e4m3/nvfp4`.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "kernels/formats/parameters.h"
#include "kernels/formats/visibility.h"

namespace bitalloc {

enum class FormatKind {
  kBf16,
  kFp8E4m3,
  kFp8E5m2,
  kNvfp4,
  kNvfp4FourOverSix,
  kMxfp4,
  kMxfp8,
  kMxint8,
  kInt2,
  kInt3,
  kInt4,
  kInt8,
  kInt4TokenHead,
  kInt8TokenHead,
};

// How the tensor-wide scale (`k_scale`/`v_scale` in a serving engine's checkpoint) is chosen.
enum class ScalePolicy {
  kConstant,    // scale 1.0, i.e. amax 448: nothing to calibrate
  kCalibrated,  // scale amax/448, amax = largest magnitude seen over the calibration batches
};

// Which NVFP4 bytes are scored (nvfp4.h, nvfp4_dialects.h).
enum class Encoding {
  kServed,    // global scale = k_scale: what vLLM's store kernel writes (the default)
  kModelopt,  // global scale = amax/(6·448), i.e. 1/6 for amax 448: what ModelOpt's search scores
  kTensor,    // ModelOpt's NVFP4QTensor, global scale = k_scale
  kFast,      // kServed with the approximate reciprocals of store kernels
  kExact,     // kServed in Transformer Engine's order of operations, fast math off
};

// Who shares a scale.
enum class Granularity {
  kTensor,
  kTokenHead,  // a dynamic scale for every token and head
};

// Along what the groups of int2 … int8 lie.
enum class Axis {
  kToken,    // along head_dim: every token has its own
  kChannel,  // along the tokens of a sequence: every channel has its own
};

// What is done to a row before it is stored, and undone when it is read.
enum class Rotation { kNone, kHadamard };

// The number format of one side (K or V) of a cache. A parameter that a kind does not have, or that
// is at the kind's default, is 0, so that equal formats compare equal.
struct Format {
  FormatKind kind = FormatKind::kBf16;
  ScalePolicy scale = ScalePolicy::kConstant;
  Encoding encoding = Encoding::kServed;
  Granularity granularity = Granularity::kTensor;
  BlockError error = BlockError::kMse;
  uint32_t normaliser = 0;  // of nvfp4_4over6: 0, 256 or 448; 0 is the cache format of vLLM
  BlockExponent exponent = BlockExponent::kRceil;
  uint32_t group = 0;  // of int2 … int8: neighbours that share a scale; 0 is 64
  Axis axis = Axis::kToken;
  Arithmetic arithmetic = Arithmetic::kBf16;
  Rotation rotate = Rotation::kNone;
  See see = See::kAll;
  uint32_t window = 0;   // 0 is 128
  uint32_t prefill = 0;  // tokens of the prompt

  auto operator<=>(const Format&) const = default;
};

// Neighbours that share a scale: 64 unless said; 0 where the kind has no such parameter.
int64_t group_of(const Format& format);

// Which tokens its readers see exact.
Visibility visibility_of(const Format& format);

// What the cost of a format may depend on.
struct CacheShape {
  int64_t head_dim = 0;  // elements of one head's K or V of a token
  int64_t context = 0;   // tokens of a sequence; 0: so many that a window of exact ones is nothing
  Side side = Side::kK;
};

// Stored bits an element, with all that is stored beside the codes (scales, shifts), and with the
// tokens that are kept exact (16 bits) in a cache of `context` tokens.
double bits_per_element(const Format& format, const CacheShape& shape);
// Whether rows of head_dim elements can be stored. Errors: kUnsupported.
Status check_head_dim(const Format& format, int64_t head_dim);
// Canonical name, e.g. "nvfp4[encoding=modelopt]".
std::string format_name(const Format& format);
// Accepts what `format_name` prints, defaults written out, and short spellings `fp8` and
// `bfloat16`. Errors: kInvalidArgument naming the unknown format or parameter and what there is.
Result<Format> parse_format(std::string_view text);

// What one KV site may become.
struct Candidate {
  Format k;
  Format v;

  auto operator<=>(const Candidate&) const = default;
};

std::string candidate_name(const Candidate& candidate);  // "K/V"
// "K/V", or one format for both sides ("nvfp4" = "nvfp4/nvfp4"); "kivi2" and "kivi4" are KIVI's
// pair, with groups of 32 and 128 exact tokens.
Result<Candidate> parse_candidate(std::string_view text);

}  // namespace bitalloc
