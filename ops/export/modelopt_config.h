// The quantization metadata that NVIDIA ModelOpt 0.48.0rc1 writes for quantized K/V caches over
// unquantized weights, which is what serving engines read. Source: modelopt/torch/export
// (quant_utils.get_quant_config, convert_hf_config.convert_hf_quant_config_format); the test
// compares with files that ModelOpt wrote.
//
// The layout has one `quant_algo` an attention layer: FP8, NVFP4 or FP8_K_NVFP4_V. A layer whose
// cache stays bf16 is left out of the map. Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/search_spec.h"
#include "common/status.h"

namespace bitalloc {

using OrderedJson = nlohmann::ordered_json;  // keeps the order that ModelOpt writes

// "FP8", "NVFP4", "FP8_K_NVFP4_V"; empty for bf16/bf16. Errors: kUnsupported naming the site for
// a pair that the layout cannot say, e.g. nvfp4/fp8_e4m3 or one side in bf16.
Result<std::string> quant_algo(const Site& site, const Candidate& candidate);

// hf_quant_config.json. `assignment` has one candidate a site of `sites`, in their order.
// Errors: those of quant_algo; kUnsupported when no site is quantized at all.
Result<OrderedJson> hf_quant_config(const std::vector<Site>& sites,
                                    const std::vector<Candidate>& assignment);

// "quantization_config" of config.json: the same in the other layout.
// REQUIRES: `hf` is what hf_quant_config returned.
OrderedJson quantization_config(const OrderedJson& hf);

}  // namespace bitalloc
