// Names and costs of number formats and candidates. The numerics are in kernels/; this is what the
// coordinator, the solver and the command line need to know about a format.
//
// Canonical names: `bf16`, `fp8_e4m3`, `nvfp4`; parameters that differ from the default follow in
// brackets: `nvfp4[encoding=modelopt]`, `fp8_e4m3[scale=calibrated]`. A candidate of a KV site is a
// pair `K/V`, e.g. `fp8_e4m3/nvfp4`.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace bitalloc {

enum class FormatKind { kBf16, kFp8E4m3, kNvfp4 };

// How the tensor-wide scale (`k_scale`/`v_scale` in a serving engine's checkpoint) is chosen.
enum class ScalePolicy {
  kConstant,    // scale 1.0, i.e. amax 448: nothing to calibrate
  kCalibrated,  // scale amax/448, amax = largest magnitude seen over the calibration batches
};

// Which NVFP4 bytes are scored (see kernels/formats/nvfp4.h).
enum class Encoding {
  kServed,    // global scale = k_scale: what vLLM's store kernel writes (the default)
  kModelopt,  // global scale = amax/(6·448), i.e. 1/6 for amax 448: what ModelOpt's search scores
};

// The number format of one side (K or V) of a cache.
struct Format {
  FormatKind kind = FormatKind::kBf16;
  ScalePolicy scale = ScalePolicy::kConstant;  // always kConstant for bf16
  Encoding encoding = Encoding::kServed;       // always kServed unless kind is kNvfp4

  auto operator<=>(const Format&) const = default;
};

// Stored bits per element, block scales included: 16, 8, 4.5.
double bits_per_element(const Format& format);
// Canonical name, e.g. "nvfp4[encoding=modelopt]".
std::string format_name(const Format& format);
// Accepts what `format_name` prints, and short spellings `fp8` and `bfloat16`.
// Errors: kInvalidArgument naming the unknown format or parameter and what there is.
Result<Format> parse_format(std::string_view text);

// What one KV site may become.
struct Candidate {
  Format k;
  Format v;

  auto operator<=>(const Candidate&) const = default;
};

std::string candidate_name(const Candidate& candidate);  // "K/V"
// "K/V", or one format for both sides ("nvfp4" = "nvfp4/nvfp4").
Result<Candidate> parse_candidate(std::string_view text);

// One line of `bitalloc formats`.
struct FormatDescription {
  Format format;
  std::string granularity;  // what shares a scale
  std::string served_by;    // engines that store it
  std::string description;
};
std::vector<FormatDescription> all_formats();

}  // namespace bitalloc
