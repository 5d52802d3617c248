#include "ops/export/modelopt_config.h"

#include <fmt/format.h>

#include <set>

namespace bitalloc {
namespace {

// vLLM looks at the producer's name, and ModelOpt's own loaders at both.
OrderedJson producer() { return {{"name", "modelopt"}, {"version", "0.48.0rc1"}}; }

constexpr FormatKind kNameless = FormatKind::kMxint8;  // any kind that has no name below

// Nothing but scales and the dialect of NVFP4 is said otherwise than by default.
bool is_plain(const Format& format) {
  return format == Format{format.kind, format.scale, format.encoding};
}

}  // namespace

Result<std::string> quant_algo(const Site& site, const Candidate& candidate) {
  const FormatKind k = is_plain(candidate.k) ? candidate.k.kind : kNameless;
  const FormatKind v = is_plain(candidate.v) ? candidate.v.kind : kNameless;
  if (k == FormatKind::kBf16 && v == FormatKind::kBf16) return std::string();
  if (k == FormatKind::kFp8E4m3 && v == FormatKind::kFp8E4m3) return std::string("FP8");
  if (k == FormatKind::kNvfp4 && v == FormatKind::kNvfp4) return std::string("NVFP4");
  if (k == FormatKind::kFp8E4m3 && v == FormatKind::kNvfp4) return std::string("FP8_K_NVFP4_V");
  return unsupported(
      fmt::format("{} is {}, which ModelOpt's checkpoint layout has no name for", site.name,
                  candidate_name(candidate)),
      site.name,
      "exportable are bf16/bf16, fp8_e4m3/fp8_e4m3, nvfp4/nvfp4 and fp8_e4m3/nvfp4; search "
      "without the other candidates");
}

Result<OrderedJson> hf_quant_config(const std::vector<Site>& sites,
                                    const std::vector<Candidate>& assignment) {
  BA_CHECK(sites.size() == assignment.size(), "one candidate a site");
  OrderedJson layers = OrderedJson::object();
  std::set<std::string> algos;
  for (size_t i = 0; i < sites.size(); ++i) {
    BA_ASSIGN_OR_RETURN(const std::string algo, quant_algo(sites[i], assignment[i]));
    if (algo.empty()) continue;
    algos.insert(algo);
    layers[sites[i].name] = {{"quant_algo", algo}};
  }
  if (algos.empty()) {
    return unsupported("every K/V cache of this assignment is bf16: there is nothing to export", "",
                       "use the model as it is, or ask for a lower budget");
  }
  OrderedJson quantization = OrderedJson::object();
  quantization["quant_algo"] = nullptr;
  quantization["kv_cache_quant_algo"] = algos.size() == 1 ? *algos.begin() : "MIXED_PRECISION";
  quantization["quantized_layers"] = OrderedJson::object();
  quantization["kv_cache_quantized_layers"] = std::move(layers);
  quantization["kv_cache_schema_version"] = 1;
  OrderedJson config = OrderedJson::object();
  config["producer"] = producer();
  config["quantization"] = std::move(quantization);
  return config;
}

OrderedJson quantization_config(const OrderedJson& hf) {
  const OrderedJson& quantization = hf.at("quantization");
  const std::string algo = quantization.at("kv_cache_quant_algo");
  OrderedJson config = OrderedJson::object();
  config["ignore"] = OrderedJson::array();
  if (algo == "FP8") {
    config["kv_cache_scheme"] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  } else if (algo == "NVFP4") {
    config["kv_cache_scheme"] = algo;
  } else {
    config["kv_cache_quant_algo"] = algo;
  }
  config["kv_cache_quantized_layers"] = quantization.at("kv_cache_quantized_layers");
  config["kv_cache_schema_version"] = quantization.at("kv_cache_schema_version");
  config["producer"] = hf.at("producer");
  config["quant_method"] = "modelopt";
  return config;
}

}  // namespace bitalloc
