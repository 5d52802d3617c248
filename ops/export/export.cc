#include "ops/export/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "common/files.h"
#include "common/json.h"
#include "common/model_files.h"
#include "common/safetensors.h"
#include "ops/export/modelopt_config.h"
#include "ops/export/staging.h"

namespace bitalloc {
namespace fs = std::filesystem;
namespace {

constexpr char kProvenanceFile[] = "bitalloc.json";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr float kFp8Max = 448.0F;  // the largest E4M3 value: amax / 448 is what engines call scale

struct ScaleTensor {
  std::string name;
  float value = 1.0F;
};

Status check_sizes(const ExportRequest& request) {
  const size_t sites = request.spec.sites.size();
  if (request.assignment.size() != sites) {
    return invalid_argument(
        fmt::format("{} candidates for {} sites", request.assignment.size(), sites), "assignment");
  }
  if (!request.amax.empty() && request.amax.size() != 2 * sites) {
    return invalid_argument(
        fmt::format("{} amax values for {} sites of K and V", request.amax.size(), sites), "amax");
  }
  if (!request.scores.empty() && request.scores.size() != sites) {
    return invalid_argument(fmt::format("{} scores for {} sites", request.scores.size(), sites),
                            "scores");
  }
  return {};
}

bool is_within(const fs::path& inner, const fs::path& outer) {
  const auto ends = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return ends.first == outer.end();
}

// Replacing or filling a directory that has to do with the model's would damage the model.
Status check_output_place(const ExportRequest& request) {
  if (request.output_dir.empty()) {
    return invalid_argument("the output directory has no name", "output");
  }
  std::error_code error;
  const fs::path model = fs::weakly_canonical(fs::absolute(request.model_dir), error);
  fs::path output = fs::weakly_canonical(fs::absolute(request.output_dir), error);
  if (!output.has_filename()) output = output.parent_path();
  if (is_within(output, model) || is_within(model, output)) {
    return invalid_argument(
        fmt::format("the output directory {} is, holds or lies in the model's directory {}",
                    output.string(), model.string()),
        request.output_dir.string(), "choose an output directory elsewhere");
  }
  return {};
}

// The model must be the one that the scores are about: same weights, same configuration.
Status check_model(const ModelFiles& model, const SearchSpec& spec) {
  const std::string where = model.directory.string();
  if (model.weights_sha256 != spec.model.weights_sha256) {
    return bitalloc::mismatch(
        fmt::format("the weights in {} are not those that were searched (SHA-256 {:.12}…"
                    ", searched {:.12}…)",
                    where, model.weights_sha256, spec.model.weights_sha256),
        where, "give the directory of the searched model, or search this one");
  }
  if (model.config_sha256 != spec.model.config_sha256) {
    return bitalloc::mismatch(fmt::format("{}/config.json is not the one that was searched", where),
                              where + "/config.json",
                              "give the directory of the searched model, or search this one");
  }
  for (const Site& site : spec.sites) {
    const bool known = std::any_of(model.kv_sites.begin(), model.kv_sites.end(),
                                   [&](const Site& other) { return other.name == site.name; });
    if (!known) {
      return bitalloc::mismatch(fmt::format("the model in {} has no {}", where, site.name),
                                site.name);
    }
  }
  return {};
}

Result<float> scale_of(const ExportRequest& request, size_t site, int side) {
  const Candidate& candidate = request.assignment[site];
  const Format& format = side == 0 ? candidate.k : candidate.v;
  if (format.scale == ScalePolicy::kConstant) return 1.0F;
  const float amax = request.amax.empty() ? kFp8Max : request.amax[2 * site + side];
  if (!std::isfinite(amax) || !(amax > 0)) {
    return invalid_argument(
        fmt::format("the calibrated amax of {} of {} is {}: no scale can be made of it",
                    side == 0 ? "K" : "V", request.spec.sites[site].name, amax),
        request.spec.sites[site].name, "calibrate on other text, or use the constant scale");
  }
  return amax / kFp8Max;
}

// Scales of every quantized site, in the order of the sites.
Result<std::vector<ScaleTensor>> scale_tensors(const ExportRequest& request) {
  std::vector<ScaleTensor> scales;
  for (size_t i = 0; i < request.assignment.size(); ++i) {
    const std::string& name = request.spec.sites[i].name;
    if (request.assignment[i].k.kind == FormatKind::kBf16) continue;
    BA_ASSIGN_OR_RETURN(const float k, scale_of(request, i, 0));
    BA_ASSIGN_OR_RETURN(const float v, scale_of(request, i, 1));
    scales.push_back({name + ".k_proj.k_scale", k});
    scales.push_back({name + ".v_proj.v_scale", v});
  }
  return scales;
}

double effective_bits(const ExportRequest& request) {
  double bits = 0;
  double width = 0;
  for (size_t i = 0; i < request.assignment.size(); ++i) {
    const Site& site = request.spec.sites[i];
    const auto site_width = static_cast<double>(site.k_width + site.v_width);
    bits += site_width * candidate_bits(site, request.assignment[i]);
    width += site_width;
  }
  return width > 0 ? bits / width : 0;
}

OrderedJson site_provenance(const ExportRequest& request, size_t i) {
  const Site& site = request.spec.sites[i];
  OrderedJson json = OrderedJson::object();
  json["site"] = site.name;
  json["candidate"] = candidate_name(request.assignment[i]);
  json["bits"] = candidate_bits(site, request.assignment[i]);
  if (!request.scores.empty()) {
    const Score& score = request.scores[i];
    json["kl_nats_per_token"] = score.kl_nats_per_token;
    json["standard_error"] =
        score.standard_error ? OrderedJson(*score.standard_error) : OrderedJson();
  }
  return json;
}

OrderedJson provenance(const ExportRequest& request, const std::vector<ScaleTensor>& scales) {
  OrderedJson json = OrderedJson::object();
  json["format"] = "bitalloc-export";
  json["version"] = 1;
  json["bitalloc"] = BITALLOC_VERSION;
  json["search"] = request.search_id;
  json["fingerprint"] = request.fingerprint;
  json["model"] = request.spec.model.name;
  json["weights_sha256"] = request.spec.model.weights_sha256;
  json["recipe"] = request.spec.recipe;
  json["budget"] = {{"effective_bits", request.budget_bits}};
  json["effective_bits"] = effective_bits(request);
  if (!request.scores.empty()) {
    double sum = 0;
    for (const Score& score : request.scores) sum += score.kl_nats_per_token;
    json["objective_kl_nats"] = sum;
  }
  json["disabled_sites"] = request.spec.disabled_sites;
  json["sites"] = OrderedJson::array();
  for (size_t i = 0; i < request.spec.sites.size(); ++i) {
    json["sites"].push_back(site_provenance(request, i));
  }
  json["scales"] = OrderedJson::object();
  for (const ScaleTensor& scale : scales) json["scales"][scale.name] = scale.value;
  return json;
}

std::vector<std::string> warnings(const ExportRequest& request, const ModelFiles& model,
                                  size_t quantized_sites) {
  std::vector<std::string> texts;
  if (quantized_sites < model.kv_sites.size()) {
    texts.push_back(fmt::format(
        "{} of {} layers keep a bf16 cache. ModelOpt's layout says so by leaving them out of "
        "kv_cache_quantized_layers: an engine that ignores that map would quantize them",
        model.kv_sites.size() - quantized_sites, model.kv_sites.size()));
  }
  const bool foreign = std::any_of(request.assignment.begin(), request.assignment.end(),
                                   [](const Candidate& candidate) {
                                     return candidate.k.encoding == Encoding::kModelopt ||
                                            candidate.v.encoding == Encoding::kModelopt;
                                   });
  if (foreign) {
    texts.push_back(
        "the search scored ModelOpt's NVFP4 encoding; serving engines store another one "
        "(encoding=served)");
  }
  return texts;
}

// The model's own files that go along: everything but other copies of the weights and what we
// write ourselves. Folders and hidden files stay behind.
Result<std::vector<fs::path>> companion_files(const fs::path& model_dir) {
  static const std::set<std::string> kWeightSuffixes = {
      ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".ot"};
  static const std::set<std::string> kOurs = {"config.json", "hf_quant_config.json", kIndexFile,
                                              kProvenanceFile, "pytorch_model.bin.index.json"};
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model_dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file(error) || name.starts_with(".")) continue;
    if (kWeightSuffixes.contains(entry.path().extension().string()) || kOurs.contains(name)) {
      continue;
    }
    files.push_back(entry.path());
  }
  if (error) {
    return invalid_argument(fmt::format("cannot list {}: {}", model_dir.string(), error.message()),
                            model_dir.string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Loaders take model.safetensors alone when there is one, so that a single file needs a shard's
// name for the scales to be seen beside it.
struct ShardNames {
  std::map<std::string, std::string> renamed;  // file of the model → its name in the export
  std::string scales;
};

ShardNames shard_names(const ModelFiles& model) {
  ShardNames names;
  const auto& files = model.tensors->files();
  if (files.size() == 1) {
    names.renamed[files[0].filename().string()] = "model-00001-of-00002.safetensors";
    names.scales = "model-00002-of-00002.safetensors";
    return names;
  }
  for (const fs::path& file : files) {
    names.renamed[file.filename().string()] = file.filename().string();
  }
  names.scales = "model-kv-scales.safetensors";
  return names;
}

OrderedJson index_json(const ModelFiles& model, const ShardNames& names,
                       const std::vector<ScaleTensor>& scales) {
  size_t total_size = scales.size() * sizeof(float);
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, tensor] : model.tensors->tensors()) {
    total_size += tensor.bytes.size();
    weight_map[name] = names.renamed.at(tensor.file);
  }
  for (const ScaleTensor& scale : scales) weight_map[scale.name] = names.scales;
  return {{"metadata", {{"total_size", total_size}}}, {"weight_map", weight_map}};
}

Status write_scales(const fs::path& file, const std::vector<ScaleTensor>& scales) {
  std::vector<TensorToWrite> tensors;
  for (const ScaleTensor& scale : scales) {
    tensors.push_back({scale.name, Dtype::kF32, {}, std::as_bytes(std::span(&scale.value, 1))});
  }
  return write_safetensors(file, tensors, {{"format", "pt"}});
}

// config.json with the quantization_config at its end, everything else as it was.
Result<std::string> config_text(const fs::path& model_dir, const OrderedJson& quantization) {
  const fs::path file = model_dir / "config.json";
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(file, size_t{16} << 20));
  OrderedJson config = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return invalid_argument(fmt::format("{} is not a JSON object", file.string()), file.string());
  }
  if (config.contains("quantization_config")) {
    return invalid_argument(fmt::format("{} has a quantization_config already", file.string()),
                            file.string() + ".quantization_config",
                            "export from the model before quantization");
  }
  config["quantization_config"] = quantization;
  return config.dump(2) + "\n";
}

}  // namespace

Result<ExportSummary> export_model(const ExportRequest& request) {
  BA_RETURN_IF_ERROR(check_sizes(request));
  BA_ASSIGN_OR_RETURN(const OrderedJson hf,
                      hf_quant_config(request.spec.sites, request.assignment));
  BA_ASSIGN_OR_RETURN(const std::vector<ScaleTensor> scales, scale_tensors(request));
  BA_RETURN_IF_ERROR(check_output_place(request));
  BA_ASSIGN_OR_RETURN(const ModelFiles model, inspect_model(request.model_dir));
  BA_RETURN_IF_ERROR(check_model(model, request.spec));
  BA_ASSIGN_OR_RETURN(const std::string config,
                      config_text(request.model_dir, quantization_config(hf)));
  BA_ASSIGN_OR_RETURN(const std::vector<fs::path> companions, companion_files(request.model_dir));
  BA_ASSIGN_OR_RETURN(StagingDirectory staging,
                      StagingDirectory::create(request.output_dir, request.force, kProvenanceFile));

  ExportSummary summary;
  const auto place = [&](const fs::path& file, const std::string& name) -> Status {
    BA_ASSIGN_OR_RETURN(const StagingDirectory::Placed placed, staging.place_file(file, name));
    ++(placed == StagingDirectory::Placed::kLinked ? summary.files_linked : summary.files_copied);
    return {};
  };
  const ShardNames names = shard_names(model);
  for (const fs::path& file : model.tensors->files()) {
    BA_RETURN_IF_ERROR(place(file, names.renamed.at(file.filename().string())));
  }
  for (const fs::path& file : companions) {
    BA_RETURN_IF_ERROR(place(file, file.filename().string()));
  }
  BA_RETURN_IF_ERROR(write_scales(staging.path() / names.scales, scales));
  BA_RETURN_IF_ERROR(staging.write_file(kIndexFile, index_json(model, names, scales).dump(2)));
  BA_RETURN_IF_ERROR(staging.write_file("hf_quant_config.json", hf.dump(4)));
  BA_RETURN_IF_ERROR(staging.write_file("config.json", config));
  BA_RETURN_IF_ERROR(
      staging.write_file(kProvenanceFile, provenance(request, scales).dump(2) + "\n"));
  BA_RETURN_IF_ERROR(staging.publish());

  summary.directory = staging.target();
  summary.scales = static_cast<int64_t>(scales.size());
  summary.effective_bits = effective_bits(request);
  summary.warnings = warnings(request, model, scales.size() / 2);
  return summary;
}

}  // namespace bitalloc
