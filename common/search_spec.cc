#include "common/search_spec.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/tokens.h"

namespace bitalloc {
namespace {

constexpr int64_t kMaxSites = 100'000;
constexpr int64_t kMaxCandidates = 256;
constexpr int64_t kMaxUnits = 4'000'000;  // bounds what planning a submission can cost

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool has_calibrated_scale(const Candidate& candidate) {
  return candidate.k.scale == ScalePolicy::kCalibrated ||
         candidate.v.scale == ScalePolicy::kCalibrated;
}

Status in_range(int64_t value, int64_t low, int64_t high, const char* field) {
  if (value >= low && value <= high) return {};
  return invalid_argument(fmt::format("{} is {}; it must be {}…{}", field, value, low, high),
                          field);
}

Status validate_counts(const SearchSpec& spec) {
  BA_RETURN_IF_ERROR(in_range(spec.model.num_layers, 1, kMaxSites, "model.num_layers"));
  BA_RETURN_IF_ERROR(in_range(spec.model.vocab_size, 1, int64_t{1} << 31, "model.vocab_size"));
  BA_RETURN_IF_ERROR(in_range(std::ssize(spec.sites), 1, kMaxSites, "sites"));
  BA_RETURN_IF_ERROR(in_range(spec.sequences, 1, kMaxSequences, "sequences"));
  BA_RETURN_IF_ERROR(in_range(spec.length, 1, kMaxLength, "length"));
  BA_RETURN_IF_ERROR(in_range(spec.batch_sequences, 1, kMaxSequences, "batch_sequences"));
  BA_RETURN_IF_ERROR(in_range(spec.sites_per_unit, 1, kMaxSites, "sites_per_unit"));
  BA_RETURN_IF_ERROR(
      in_range(spec.calibration_sequences, 0, kMaxSequences, "calibration_sequences"));
  BA_RETURN_IF_ERROR(in_range(spec.calibration_length, 0, kMaxLength, "calibration_length"));
  if (!spec.amax.empty() && spec.amax.size() != 2 * spec.sites.size()) {
    return invalid_argument("amax does not hold two numbers a site", "amax");
  }
  for (const float amax : spec.amax) {
    if (std::isfinite(amax) && amax >= 0) continue;
    return invalid_argument(fmt::format("amax holds {}", amax), "amax");
  }
  if (spec.needs_calibration() != (spec.calibration_sequences > 0)) {
    return invalid_argument("calibrated scales need calibration tokens, and only they do",
                            "calibration_sequences");
  }
  return {};
}

Status validate_cache_shape(const ModelRef& model) {
  BA_RETURN_IF_ERROR(in_range(model.num_kv_heads, 0, int64_t{1} << 16, "model.num_kv_heads"));
  BA_RETURN_IF_ERROR(in_range(model.head_dim, 0, int64_t{1} << 16, "model.head_dim"));
  BA_RETURN_IF_ERROR(in_range(model.parameters, 0, int64_t{1} << 45, "model.parameters"));
  if (!model.sliding_window.empty() && std::ssize(model.sliding_window) != model.num_layers) {
    return invalid_argument("model.sliding_window does not hold one number a layer",
                            "model.sliding_window");
  }
  for (const int64_t window : model.sliding_window) {
    BA_RETURN_IF_ERROR(in_range(window, 0, int64_t{1} << 40, "model.sliding_window"));
  }
  return {};
}

Status validate_sites(const SearchSpec& spec) {
  std::set<std::string> names;
  std::set<int64_t> layers;
  for (const Site& site : spec.sites) {
    BA_RETURN_IF_ERROR(in_range(site.layer, 0, spec.model.num_layers - 1, "sites.layer"));
    BA_RETURN_IF_ERROR(in_range(site.k_width, 1, int64_t{1} << 24, "sites.k_width"));
    BA_RETURN_IF_ERROR(in_range(site.v_width, 1, int64_t{1} << 24, "sites.v_width"));
    BA_RETURN_IF_ERROR(in_range(site.head_dim, 0, int64_t{1} << 16, "sites.head_dim"));
    BA_RETURN_IF_ERROR(in_range(site.context, 0, kMaxLength, "sites.context"));
    if (!names.insert(site.name).second || !layers.insert(site.layer).second) {
      return invalid_argument(fmt::format("site '{}' appears twice", site.name), "sites");
    }
  }
  return {};
}

Status validate_choices(const SearchSpec& spec) {
  if (spec.kind == JobKind::kValidation) {
    BA_RETURN_IF_ERROR(
        in_range(std::ssize(spec.configurations), 1, kMaxCandidates, "configurations"));
    for (const auto& configuration : spec.configurations) {
      if (configuration.candidates.size() != spec.sites.size()) {
        return invalid_argument(fmt::format("configuration '{}' does not name one candidate a site",
                                            configuration.name),
                                "configurations");
      }
    }
    return {};
  }
  BA_RETURN_IF_ERROR(in_range(std::ssize(spec.candidates), 1, kMaxCandidates, "candidates"));
  const std::set<Candidate> distinct(spec.candidates.begin(), spec.candidates.end());
  if (distinct.size() != spec.candidates.size()) {
    return invalid_argument("a candidate is listed twice", "candidates");
  }
  return {};
}

Json model_to_json(const ModelRef& model) {
  return {{"path", model.path},
          {"name", model.name},
          {"family", model.family},
          {"weights_sha256", model.weights_sha256},
          {"config_sha256", model.config_sha256},
          {"num_layers", model.num_layers},
          {"vocab_size", model.vocab_size},
          {"num_kv_heads", model.num_kv_heads},
          {"head_dim", model.head_dim},
          {"parameters", model.parameters},
          {"sliding_window", model.sliding_window}};
}

Result<ModelRef> model_from_json(const Json& json) {
  const std::string where = "spec.model";
  ModelRef model;
  BA_ASSIGN_OR_RETURN(model.path, json_field<std::string>(json, "path", where));
  BA_ASSIGN_OR_RETURN(model.name, json_field<std::string>(json, "name", where));
  BA_ASSIGN_OR_RETURN(model.family, json_field<std::string>(json, "family", where));
  BA_ASSIGN_OR_RETURN(model.weights_sha256, json_field<std::string>(json, "weights_sha256", where));
  BA_ASSIGN_OR_RETURN(model.config_sha256, json_field<std::string>(json, "config_sha256", where));
  BA_ASSIGN_OR_RETURN(model.num_layers, json_field<int64_t>(json, "num_layers", where));
  BA_ASSIGN_OR_RETURN(model.vocab_size, json_field<int64_t>(json, "vocab_size", where));
  BA_ASSIGN_OR_RETURN(model.num_kv_heads, json_field_or<int64_t>(json, "num_kv_heads", where, 0));
  BA_ASSIGN_OR_RETURN(model.parameters, json_field_or<int64_t>(json, "parameters", where, 0));
  BA_ASSIGN_OR_RETURN(model.head_dim, json_field_or<int64_t>(json, "head_dim", where, 0));
  BA_ASSIGN_OR_RETURN(model.sliding_window,
                      json_field_or<std::vector<int64_t>>(json, "sliding_window", where, {}));
  return model;
}

Json candidates_to_json(const std::vector<Candidate>& candidates) {
  Json names = Json::array();
  for (const Candidate& candidate : candidates) names.push_back(candidate_name(candidate));
  return names;
}

Result<std::vector<Candidate>> candidates_from_json(const Json& json, const std::string& where) {
  BA_ASSIGN_OR_RETURN(const auto names,
                      json_field<std::vector<std::string>>(json, "candidates", where));
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    BA_ASSIGN_OR_RETURN(const Candidate candidate, parse_candidate(name));
    candidates.push_back(candidate);
  }
  return candidates;
}

Result<std::vector<Site>> sites_from_json(const Json& json) {
  BA_ASSIGN_OR_RETURN(const Json rows, json_field<Json>(json, "sites", "spec"));
  if (!rows.is_array()) return invalid_argument("spec.sites is not a list", "spec.sites");
  std::vector<Site> sites;
  for (const Json& row : rows) {
    Site site;
    BA_ASSIGN_OR_RETURN(site.name, json_field<std::string>(row, "name", "spec.sites"));
    BA_ASSIGN_OR_RETURN(site.layer, json_field<int64_t>(row, "layer", "spec.sites"));
    BA_ASSIGN_OR_RETURN(site.k_width, json_field<int64_t>(row, "k_width", "spec.sites"));
    BA_ASSIGN_OR_RETURN(site.v_width, json_field<int64_t>(row, "v_width", "spec.sites"));
    BA_ASSIGN_OR_RETURN(site.head_dim, json_field_or<int64_t>(row, "head_dim", "spec.sites", 0));
    BA_ASSIGN_OR_RETURN(site.context, json_field_or<int64_t>(row, "context", "spec.sites", 0));
    sites.push_back(site);
  }
  return sites;
}

Result<std::vector<Configuration>> configurations_from_json(const Json& json) {
  std::vector<Configuration> configurations;
  if (!json.contains("configurations")) return configurations;
  for (const Json& row : json["configurations"]) {
    Configuration configuration;
    BA_ASSIGN_OR_RETURN(configuration.name,
                        json_field<std::string>(row, "name", "spec.configurations"));
    BA_ASSIGN_OR_RETURN(configuration.candidates, candidates_from_json(row, "spec.configurations"));
    configurations.push_back(configuration);
  }
  return configurations;
}

}  // namespace

CacheShape cache_shape(const Site& site) {
  return {site.head_dim > 0 ? site.head_dim : std::max(site.k_width, site.v_width), site.context};
}

double candidate_bits(const Site& site, const Candidate& candidate) {
  const CacheShape shape = cache_shape(site);
  const double k_width = static_cast<double>(site.k_width);
  const double v_width = static_cast<double>(site.v_width);
  CacheShape v_shape = shape;
  v_shape.side = Side::kV;
  return (k_width * bits_per_element(candidate.k, shape) +
          v_width * bits_per_element(candidate.v, v_shape)) /
         (k_width + v_width);
}

int64_t SearchSpec::num_rows() const {
  return kind == JobKind::kSearch ? std::ssize(sites) : std::ssize(configurations);
}

int64_t SearchSpec::num_columns() const {
  return kind == JobKind::kSearch ? std::ssize(candidates) : 1;
}

int64_t SearchSpec::num_batches() const { return ceil_div(sequences, batch_sequences); }

int64_t SearchSpec::num_calibration_batches() const {
  return ceil_div(calibration_sequences, batch_sequences);
}

int64_t SearchSpec::batch_size(BatchIndex batch) const {
  return std::min(batch_sequences, sequences - batch.value * batch_sequences);
}

bool SearchSpec::needs_calibration() const {
  if (!amax.empty()) return false;
  if (std::any_of(candidates.begin(), candidates.end(), has_calibrated_scale)) return true;
  return std::any_of(configurations.begin(), configurations.end(), [](const auto& configuration) {
    return std::any_of(configuration.candidates.begin(), configuration.candidates.end(),
                       has_calibrated_scale);
  });
}

Status validate(const SearchSpec& spec) {
  if (spec.dtype != "float32" && spec.dtype != "bfloat16") {
    return invalid_argument(
        fmt::format("dtype '{}' is unknown; there are float32 and bfloat16", spec.dtype), "dtype");
  }
  BA_RETURN_IF_ERROR(validate_counts(spec));
  BA_RETURN_IF_ERROR(validate_cache_shape(spec.model));
  BA_RETURN_IF_ERROR(validate_sites(spec));
  BA_RETURN_IF_ERROR(validate_choices(spec));
  const int64_t units = spec.num_calibration_batches() +
                        spec.num_batches() * ceil_div(spec.num_rows(), spec.sites_per_unit);
  return in_range(units, 1, kMaxUnits, "units (batches × sites / sites_per_unit)");
}

Json to_json(const SearchSpec& spec) {
  Json sites = Json::array();
  for (const Site& site : spec.sites) {
    sites.push_back({{"name", site.name},
                     {"layer", site.layer},
                     {"k_width", site.k_width},
                     {"v_width", site.v_width},
                     {"head_dim", site.head_dim},
                     {"context", site.context}});
  }
  Json configurations = Json::array();
  for (const auto& configuration : spec.configurations) {
    configurations.push_back({{"name", configuration.name},
                              {"candidates", candidates_to_json(configuration.candidates)}});
  }
  Json json = {{"kind", spec.kind == JobKind::kSearch ? "search" : "validation"},
               {"model", model_to_json(spec.model)},
               {"dtype", spec.dtype},
               {"sites", sites},
               {"disabled_sites", spec.disabled_sites},
               {"candidates", candidates_to_json(spec.candidates)},
               {"configurations", configurations},
               {"sequences", spec.sequences},
               {"length", spec.length},
               {"batch_sequences", spec.batch_sequences},
               {"sites_per_unit", spec.sites_per_unit},
               {"calibration_sequences", spec.calibration_sequences},
               {"calibration_length", spec.calibration_length},
               {"amax", spec.amax},
               {"tokens_sha256", spec.tokens_sha256},
               {"calibration_sha256", spec.calibration_sha256},
               {"recipe", spec.recipe},
               {"effective_bits", spec.effective_bits}};
  if (spec.memory) json["memory"] = to_json(*spec.memory);
  return json;
}

Result<SearchSpec> search_spec_from_json(const Json& json) {
  const std::string where = "spec";
  SearchSpec spec;
  BA_ASSIGN_OR_RETURN(const auto kind, json_field<std::string>(json, "kind", where));
  if (kind != "search" && kind != "validation") {
    return invalid_argument(fmt::format("spec.kind '{}' is unknown", kind), "spec.kind");
  }
  spec.kind = kind == "search" ? JobKind::kSearch : JobKind::kValidation;
  BA_ASSIGN_OR_RETURN(const Json model, json_field<Json>(json, "model", where));
  BA_ASSIGN_OR_RETURN(spec.model, model_from_json(model));
  BA_ASSIGN_OR_RETURN(spec.dtype, json_field<std::string>(json, "dtype", where));
  BA_ASSIGN_OR_RETURN(spec.sites, sites_from_json(json));
  BA_ASSIGN_OR_RETURN(spec.disabled_sites,
                      json_field_or<std::vector<std::string>>(json, "disabled_sites", where, {}));
  BA_ASSIGN_OR_RETURN(spec.candidates, candidates_from_json(json, where));
  BA_ASSIGN_OR_RETURN(spec.configurations, configurations_from_json(json));
  BA_ASSIGN_OR_RETURN(spec.sequences, json_field<int64_t>(json, "sequences", where));
  BA_ASSIGN_OR_RETURN(spec.length, json_field<int64_t>(json, "length", where));
  BA_ASSIGN_OR_RETURN(spec.batch_sequences, json_field<int64_t>(json, "batch_sequences", where));
  BA_ASSIGN_OR_RETURN(spec.sites_per_unit, json_field<int64_t>(json, "sites_per_unit", where));
  BA_ASSIGN_OR_RETURN(spec.calibration_sequences,
                      json_field_or<int64_t>(json, "calibration_sequences", where, 0));
  BA_ASSIGN_OR_RETURN(spec.calibration_length,
                      json_field_or<int64_t>(json, "calibration_length", where, 0));
  BA_ASSIGN_OR_RETURN(spec.amax, json_field_or<std::vector<float>>(json, "amax", where, {}));
  BA_ASSIGN_OR_RETURN(spec.tokens_sha256, json_field<std::string>(json, "tokens_sha256", where));
  BA_ASSIGN_OR_RETURN(spec.calibration_sha256,
                      json_field_or<std::string>(json, "calibration_sha256", where, ""));
  BA_ASSIGN_OR_RETURN(spec.recipe, json_field_or<std::string>(json, "recipe", where, ""));
  BA_ASSIGN_OR_RETURN(spec.effective_bits,
                      json_field_or<double>(json, "effective_bits", where, 0.0));
  if (json.contains("memory")) {
    BA_ASSIGN_OR_RETURN(spec.memory, kv_budget_from_json(json["memory"], "spec.memory"));
  }
  BA_RETURN_IF_ERROR(validate(spec));
  return spec;
}

Status validate_search_id(const std::string& id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  const bool good = !id.empty() && id.size() <= 128 && id[0] != '.' && id[0] != '-' &&
                    std::all_of(id.begin(), id.end(), allowed);
  if (good) return {};
  return invalid_argument(fmt::format("'{}' is not a search id: use 1 to 128 letters, digits, "
                                      "'.', '_', '-', starting with a letter or digit",
                                      id),
                          "id");
}

}  // namespace bitalloc
