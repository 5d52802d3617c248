#include "ops/cli/search_inputs.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "common/model_files.h"
#include "common/positions.h"
#include "common/tensor_parallel.h"
#include "ops/cli/data.h"
#include "ops/cli/local_paths.h"
#include "ops/cli/recipe.h"
#include "solver/allocate.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kBatchTokensCpu = 2048;
constexpr int64_t kBatchTokensGpu = 16384;
constexpr int64_t kMaxSitesPerUnit = 5;
constexpr int64_t kUnitsPerBatch = 6;

// Splits at commas that are not inside the brackets of a format's parameters.
std::vector<std::string> split_candidates(const std::string& text) {
  std::vector<std::string> names(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c == ',' && depth == 0) {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names;
}

// The scorer's kernels work on whole blocks: better refused now than by a worker.
Status check_blocks(const ModelConfig& config, const std::vector<Candidate>& candidates) {
  for (const Candidate& candidate : candidates) {
    for (const Format& format : {candidate.k, candidate.v}) {
      Status fits = check_head_dim(format, config.head_dim);
      if (fits.ok()) continue;
      Error error = fits.error();
      error.field = "config.json.head_dim";
      return error;
    }
  }
  return {};
}

Result<Recipe> recipe_with_flags(const SearchFlags& flags) {
  BA_ASSIGN_OR_RETURN(Recipe recipe, load_recipe(flags.recipe));
  if (!flags.candidates.empty()) {
    recipe.candidates.clear();
    recipe.candidates = split_candidates(flags.candidates);
  }
  if (!flags.scale_policy.empty()) {
    BA_ASSIGN_OR_RETURN(recipe.scale_policy,
                        parse_scale_policy(flags.scale_policy, "--scale-policy"));
  }
  if (!flags.encoding.empty()) {
    BA_ASSIGN_OR_RETURN(recipe.encoding, parse_encoding(flags.encoding, "--encoding"));
  }
  if (!flags.bits.empty()) {
    BA_ASSIGN_OR_RETURN(recipe.effective_bits, parse_bits(flags.bits, "--bits"));
  }
  if (flags.sequences > 0 && !flags.memory.asked()) recipe.sequences = flags.sequences;
  if (flags.score_sequences > 0) recipe.sequences = flags.score_sequences;
  if (flags.length > 0) recipe.length = flags.length;
  for (const std::string& pattern : flags.disabled_layers) {
    recipe.disabled_layers.push_back(pattern);
  }
  return recipe;
}

// A missing model, or a budget too small, is a wrong flag here, not an answer of the service.
Error as_input_error(Error error) {
  if (error.code == ErrorCode::kNotFound || error.code == ErrorCode::kInfeasible)
    error.code = ErrorCode::kInvalidArgument;
  return error;
}

ModelRef model_ref(const ModelFiles& files) {
  ModelRef model;
  std::error_code ignored;
  const fs::path real = fs::canonical(files.directory, ignored);
  model.path = real.string();
  model.name = real.filename().string();
  model.family = model_family_name(files.config.family);
  model.weights_sha256 = files.weights_sha256;
  model.config_sha256 = files.config_sha256;
  model.num_layers = files.config.num_layers;
  model.vocab_size = files.config.vocab_size;
  model.num_kv_heads = files.config.num_kv_heads;
  model.head_dim = files.config.head_dim;
  model.parameters = files.parameters;
  const auto& windows = files.config.sliding_window;
  const bool slides = std::any_of(windows.begin(), windows.end(), [](int64_t w) { return w > 0; });
  if (slides) model.sliding_window = windows;
  return model;
}

Status choose_sites(const ModelFiles& files, const Recipe& recipe, SearchSpec& spec) {
  std::vector<bool> used(recipe.disabled_layers.size(), false);
  for (const Site& site : files.kv_sites) {
    bool disabled = false;
    for (size_t i = 0; i < used.size(); ++i) {
      if (::fnmatch(recipe.disabled_layers[i].c_str(), site.name.c_str(), 0) != 0) continue;
      disabled = true;
      used[i] = true;
    }
    if (disabled) {
      spec.disabled_sites.push_back(site.name);
    } else {
      spec.sites.push_back(site);
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    return invalid_argument(
        fmt::format("disabled_layers: '{}' fits no attention layer of the model",
                    recipe.disabled_layers[i]),
        "disabled_layers", fmt::format("names are like {}", files.kv_sites.front().name));
  }
  if (!spec.sites.empty()) return {};
  return invalid_argument("disabled_layers leave no layer to search", "disabled_layers");
}

// The budget in bytes takes the place of the recipe's in bits, unless both are asked for.
Status read_budget(const SearchFlags& flags, const Recipe& recipe, SearchSpec& spec) {
  MemoryFlags memory = flags.memory;
  memory.sequences = flags.sequences;
  BA_ASSIGN_OR_RETURN(spec.memory, memory_budget(memory));
  if (!spec.memory || !flags.bits.empty()) spec.effective_bits = recipe.effective_bits;
  return {};
}

// Fields of a budget are flags here.
Error flag_error(Error error) {
  if (error.field == "tp") error.field = "serve-tp";
  if (error.field == "block_tokens") error.field = "block-tokens";
  error.field = "--" + error.field;
  return error;
}

Status check_budget(const SearchSpec& spec) {
  if (spec.memory) {
    const Status fits = check_memory(spec, *spec.memory);
    if (!fits.ok()) return flag_error(as_input_error(fits.error()));
  }
  if (spec.effective_bits == 0) return {};
  const BitsRange range = reachable_bits(spec);
  if (spec.effective_bits >= range.lowest * (1 - 1e-10)) return {};
  return invalid_argument(
      fmt::format("--bits {} is below the lowest that these candidates reach, {}",
                  spec.effective_bits, range.lowest),
      "--bits",
      fmt::format("choose {} to {}, or add smaller formats with --candidates", range.lowest,
                  range.highest));
}

DataRequest data_request(const SearchFlags& flags, const Context& context, const Recipe& recipe,
                         const SearchSpec& spec) {
  DataRequest request;
  request.model = spec.model.path;
  request.cache = local_paths(context.home).cache;
  request.sequences = recipe.sequences;
  request.length = recipe.length;
  request.vocab_size = spec.model.vocab_size;
  request.file = flags.data;
  return request;
}

Status read_tokens(const SearchFlags& flags, const Context& context, const Recipe& recipe,
                   SearchInputs& inputs) {
  SearchSpec& spec = inputs.spec;
  BA_RETURN_IF_ERROR(make_folders(local_paths(context.home)));
  DataRequest request = data_request(flags, context, recipe, spec);
  BA_ASSIGN_OR_RETURN(inputs.tokens, load_data(request));
  spec.sequences = inputs.tokens.sequences;
  spec.length = inputs.tokens.length;
  spec.tokens_sha256 = tokens_sha256(inputs.tokens);
  if (!spec.needs_calibration()) return {};
  if (!flags.calibration.empty()) {
    request.file = flags.calibration;
    request.flag = "--calib";
    BA_ASSIGN_OR_RETURN(inputs.calibration, load_data(request));
  } else {
    inputs.calibration = inputs.tokens;
  }
  spec.calibration_sequences = inputs.calibration.sequences;
  spec.calibration_length = inputs.calibration.length;
  spec.calibration_sha256 = tokens_sha256(inputs.calibration);
  return {};
}

}  // namespace

Result<double> parse_bits(const std::string& text, const std::string& flag) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && std::isfinite(value) && value > 0) return value;
  return invalid_argument(fmt::format("{}: '{}' is not a number of bits above 0", flag, text),
                          flag);
}

int64_t default_batch_sequences(int64_t length, int64_t sequences, const std::string& device) {
  const int64_t tokens = device.starts_with("cuda") ? kBatchTokensGpu : kBatchTokensCpu;
  return std::min(std::max<int64_t>(1, tokens / length), sequences);
}

int64_t default_sites_per_unit(int64_t sites) {
  return std::clamp<int64_t>(sites / kUnitsPerBatch, 1, kMaxSitesPerUnit);
}

Result<SearchInputs> read_search_inputs(const SearchFlags& flags, const Context& context) {
  if (!flags.id.empty()) BA_RETURN_IF_ERROR(validate_search_id(flags.id));
  BA_ASSIGN_OR_RETURN(const Recipe recipe, recipe_with_flags(flags));
  SearchInputs inputs;
  SearchSpec& spec = inputs.spec;
  BA_ASSIGN_OR_RETURN(spec.candidates, recipe_candidates(recipe));
  auto files = inspect_model(flags.model);
  if (!files.ok()) return as_input_error(files.error());
  BA_RETURN_IF_ERROR(check_blocks(files->config, spec.candidates));
  BA_RETURN_IF_ERROR(check_tensor_parallel(files->config, flags.tensor_parallel, "--tp"));
  inputs.parameters = files->parameters;
  inputs.hidden_size = files->config.hidden_size;
  spec.model = model_ref(*files);
  spec.dtype = flags.dtype;
  spec.recipe = recipe.name;
  BA_RETURN_IF_ERROR(read_budget(flags, recipe, spec));
  BA_RETURN_IF_ERROR(choose_sites(*files, recipe, spec));
  BA_RETURN_IF_ERROR(check_budget(spec));
  BA_RETURN_IF_ERROR(read_tokens(flags, context, recipe, inputs));
  BA_RETURN_IF_ERROR(check_positions(inputs.tokens, spec.candidates, "--data"));
  for (Site& site : spec.sites) {
    site.context = spec.memory ? spec.memory->load.context : spec.length;
  }
  BA_RETURN_IF_ERROR(check_budget(spec));  // once more: exact tokens cost bits
  spec.batch_sequences = flags.batch > 0
                             ? flags.batch
                             : default_batch_sequences(spec.length, spec.sequences, flags.device);
  spec.sites_per_unit = flags.sites_per_unit > 0 ? flags.sites_per_unit
                                                 : default_sites_per_unit(std::ssize(spec.sites));
  BA_RETURN_IF_ERROR(validate(spec));
  return inputs;
}

std::vector<std::string> submit_blobs(const SearchInputs& inputs) {
  std::vector<std::string> blobs = {ids_to_blob(inputs.tokens), mask_to_blob(inputs.tokens)};
  if (inputs.spec.calibration_sequences > 0) {
    blobs.push_back(ids_to_blob(inputs.calibration));
    blobs.push_back(mask_to_blob(inputs.calibration));
  }
  return blobs;
}

double forward_passes(const SearchSpec& spec) {
  const auto layers = static_cast<double>(spec.model.num_layers);
  double suffixes = 0;  // full passes of one candidate over all sites
  for (const Site& site : spec.sites) {
    suffixes += (layers - static_cast<double>(site.layer)) / layers;
  }
  const auto candidates = static_cast<double>(spec.candidates.size());
  return static_cast<double>(spec.sequences) * (1 + candidates * suffixes) +
         static_cast<double>(spec.calibration_sequences);
}

int64_t worker_memory_bytes(const SearchInputs& inputs) {
  const SearchSpec& spec = inputs.spec;
  const int64_t element = spec.dtype == "bfloat16" ? 2 : 4;
  const int64_t batch_tokens = spec.batch_sequences * spec.length;
  const int64_t kv_width = spec.sites.front().k_width + spec.sites.front().v_width;
  const int64_t kept_a_layer = 2 * inputs.hidden_size + kv_width;  // hidden state, q, k and v
  const int64_t kept = batch_tokens * kept_a_layer * spec.model.num_layers;
  const int64_t stacked = batch_tokens * std::ssize(spec.candidates) * 8 * inputs.hidden_size;
  return element * (inputs.parameters + kept + stacked);
}

}  // namespace bitalloc::cli
