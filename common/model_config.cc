#include "common/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <set>

#include "common/files.h"
#include "common/json.h"

namespace bitalloc {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxExtent = int64_t{1} << 31;
constexpr int64_t kMaxLayers = 4096;

struct FamilyRow {
  ModelFamily family;
  const char* model_type;
  const char* architecture;
};

constexpr std::array<FamilyRow, 4> kFamilies = {{
    {ModelFamily::kLlama, "llama", "LlamaForCausalLM"},
    {ModelFamily::kMistral, "mistral", "MistralForCausalLM"},
    {ModelFamily::kQwen2, "qwen2", "Qwen2ForCausalLM"},
    {ModelFamily::kQwen3, "qwen3", "Qwen3ForCausalLM"},
}};

// Fields that say nothing about what the network computes in evaluation: names, token ids, training
// and generation settings, caches, bookkeeping of tools.
constexpr std::array kIgnoredFields = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "_from_model_config",
    "_model_name_or_path",
    "_name_or_path",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "eos_token_id",
    "finetuning_task",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
};

Error wrong_field(const std::string& field, const std::string& what) {
  return invalid_argument(fmt::format("config.json: '{}' {}", field, what), field);
}
Error unsupported_field(const std::string& field, const std::string& what) {
  return unsupported(fmt::format("config.json: {}", what), field,
                     "bitalloc refuses what it would compute otherwise than the model means");
}

// Typed reads of one JSON object. Remembers what was asked for, so that the rest can be refused.
// null counts as absent, as in transformers.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  bool has(const std::string& key) const {
    return object_.contains(key) && !object_[key].is_null();
  }

  // Not there at all, not even as null.
  bool absent(const std::string& key) const { return !object_.contains(key); }

  const Json* find(const std::string& key) {
    known_.insert(key);
    return has(key) ? &object_[key] : nullptr;
  }

  Result<int64_t> integer(const std::string& key, std::optional<int64_t> fallback,
                          int64_t limit = kMaxExtent) {
    const Json* value = find(key);
    if (value == nullptr) {
      if (fallback) return *fallback;
      return wrong_field(path_ + key, "is missing");
    }
    if (!value->is_number_integer() || value->get<double>() < 1.0 ||
        value->get<double>() > static_cast<double>(limit)) {
      return wrong_field(path_ + key,
                         fmt::format("is {}, not an integer in 1…{}", value->dump(), limit));
    }
    return value->get<int64_t>();
  }

  Result<double> number(const std::string& key, std::optional<double> fallback) {
    const Json* value = find(key);
    if (value == nullptr) {
      if (fallback) return *fallback;
      return wrong_field(path_ + key, "is missing");
    }
    if (!value->is_number() || !std::isfinite(value->get<double>())) {
      return wrong_field(path_ + key, fmt::format("is {}, not a number", value->dump()));
    }
    return value->get<double>();
  }

  Result<double> positive(const std::string& key, std::optional<double> fallback) {
    BA_ASSIGN_OR_RETURN(const double value, number(key, fallback));
    if (!(value > 0.0)) return wrong_field(path_ + key, fmt::format("is {}, not above 0", value));
    return value;
  }

  Result<bool> boolean(const std::string& key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      return wrong_field(path_ + key, fmt::format("is {}, not true or false", value->dump()));
    }
    return value->get<bool>();
  }

  Result<std::string> text(const std::string& key, const std::string& fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) {
      return wrong_field(path_ + key, fmt::format("is {}, not a string", value->dump()));
    }
    return value->get<std::string>();
  }

  void ignore(const std::string& key) { known_.insert(key); }

  // A field that nobody asked for might change the network. null and {} cannot.
  Status refuse_rest() const {
    for (const auto& [key, value] : object_.items()) {
      if (known_.contains(key) || value.is_null() || value.empty()) continue;
      return unsupported_field(path_ + key,
                               fmt::format("field '{}' is not supported", path_ + key));
    }
    return {};
  }

 private:
  const Json& object_;
  std::string path_;  // "" or "rope_parameters."
  std::set<std::string> known_;
};

Result<ModelFamily> parse_family(Fields& fields) {
  BA_ASSIGN_OR_RETURN(const std::string type, fields.text("model_type", ""));
  const auto* row = std::find_if(kFamilies.begin(), kFamilies.end(),
                                 [&](const FamilyRow& r) { return type == r.model_type; });
  if (row == kFamilies.end()) {
    return unsupported(
        fmt::format("config.json: model_type '{}' is not supported; there are llama, mistral, "
                    "qwen2, qwen3",
                    type),
        "model_type");
  }
  if (const Json* architectures = fields.find("architectures")) {
    if (!architectures->is_array() || architectures->size() != 1 ||
        (*architectures)[0] != row->architecture) {
      return unsupported_field("architectures",
                               fmt::format("architectures {} is not supported for model_type "
                                           "'{}'; it must be [\"{}\"]",
                                           architectures->dump(), type, row->architecture));
    }
  }
  return row->family;
}

Status parse_sizes(Fields& fields, ModelConfig& config) {
  BA_ASSIGN_OR_RETURN(config.hidden_size, fields.integer("hidden_size", std::nullopt));
  BA_ASSIGN_OR_RETURN(config.intermediate_size, fields.integer("intermediate_size", std::nullopt));
  BA_ASSIGN_OR_RETURN(config.num_layers,
                      fields.integer("num_hidden_layers", std::nullopt, kMaxLayers));
  BA_ASSIGN_OR_RETURN(config.num_heads, fields.integer("num_attention_heads", std::nullopt));
  // Only Llama's configuration class lets it default to the number of heads.
  const bool is_llama = config.family == ModelFamily::kLlama;
  BA_ASSIGN_OR_RETURN(
      config.num_kv_heads,
      fields.integer("num_key_value_heads",
                     is_llama ? std::optional<int64_t>(config.num_heads) : std::nullopt));
  if (config.num_heads % config.num_kv_heads != 0) {
    return wrong_field("num_key_value_heads",
                       fmt::format("{} does not divide num_attention_heads {}", config.num_kv_heads,
                                   config.num_heads));
  }
  std::optional<int64_t> head_dim;
  if (config.family == ModelFamily::kQwen3) {
    head_dim = 128;
  } else if (config.hidden_size % config.num_heads == 0) {
    head_dim = config.hidden_size / config.num_heads;
  }
  BA_ASSIGN_OR_RETURN(config.head_dim, fields.integer("head_dim", head_dim));
  if (config.head_dim % 2 != 0) {
    return wrong_field("head_dim", fmt::format("{} is odd", config.head_dim));
  }
  BA_ASSIGN_OR_RETURN(config.vocab_size, fields.integer("vocab_size", std::nullopt));
  BA_ASSIGN_OR_RETURN(config.max_position_embeddings,
                      fields.integer("max_position_embeddings", std::nullopt));
  BA_ASSIGN_OR_RETURN(config.rms_norm_eps, fields.positive("rms_norm_eps", 1e-6));
  BA_ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.boolean("tie_word_embeddings", false));
  return {};
}

// A flag that a family's network fixes: the config may repeat it, not contradict it.
Status expect_flag(Fields& fields, const std::string& key, bool fixed) {
  BA_ASSIGN_OR_RETURN(const bool value, fields.boolean(key, fixed));
  if (value == fixed) return {};
  return unsupported_field(key,
                           fmt::format("{} = {} is not supported for this family", key, value));
}

Status parse_biases(Fields& fields, ModelConfig& config) {
  switch (config.family) {
    case ModelFamily::kLlama: {
      BA_ASSIGN_OR_RETURN(config.qkv_bias, fields.boolean("attention_bias", false));
      config.o_bias = config.qkv_bias;
      BA_ASSIGN_OR_RETURN(config.mlp_bias, fields.boolean("mlp_bias", false));
      return {};
    }
    case ModelFamily::kMistral:
      BA_RETURN_IF_ERROR(expect_flag(fields, "attention_bias", false));
      break;
    case ModelFamily::kQwen2:
      config.qkv_bias = true;
      BA_RETURN_IF_ERROR(expect_flag(fields, "attention_bias", true));
      break;
    case ModelFamily::kQwen3: {
      BA_ASSIGN_OR_RETURN(config.qkv_bias, fields.boolean("attention_bias", false));
      config.o_bias = config.qkv_bias;
      config.qk_norm = true;
      break;
    }
  }
  return expect_flag(fields, "mlp_bias", false);
}

Status parse_dtype(Fields& fields, ModelConfig& config) {
  BA_ASSIGN_OR_RETURN(const std::string old_spelling, fields.text("torch_dtype", "bfloat16"));
  BA_ASSIGN_OR_RETURN(std::string name, fields.text("dtype", old_spelling));
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "bfloat16") {
    config.dtype = Dtype::kBf16;
  } else if (name == "float16") {
    config.dtype = Dtype::kF16;
  } else if (name == "float32") {
    config.dtype = Dtype::kF32;
  } else {
    return unsupported_field(
        "dtype",
        fmt::format("dtype '{}' is not supported; there are float32, float16, bfloat16", name));
  }
  return {};
}

// `layer_types` as "does the layer slide"; nothing when the config does not have it.
Result<std::optional<std::vector<bool>>> parse_layer_types(Fields& fields, int64_t layers) {
  const Json* types = fields.find("layer_types");
  if (types == nullptr) return std::optional<std::vector<bool>>();
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) {
    return wrong_field("layer_types",
                       fmt::format("does not have one entry for each of {} layers", layers));
  }
  std::vector<bool> sliding;
  for (const auto& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return unsupported_field("layer_types",
                               fmt::format("layer type {} is not supported", type.dump()));
    }
    sliding.push_back(type == "sliding_attention");
  }
  return std::optional(sliding);
}

// The size of the window; 0 for null. Where the key is absent, the classes' default of 4096 holds.
Result<int64_t> parse_window(Fields& fields) {
  if (!fields.has("sliding_window") && !fields.absent("sliding_window")) {
    fields.ignore("sliding_window");
    return int64_t{0};
  }
  return fields.integer("sliding_window", 4096);
}

// Mistral: all layers slide, or none.
Status parse_mistral_window(Fields& fields, ModelConfig& config) {
  BA_ASSIGN_OR_RETURN(const int64_t window, parse_window(fields));
  BA_ASSIGN_OR_RETURN(const auto types, parse_layer_types(fields, config.num_layers));
  config.sliding_window.assign(static_cast<size_t>(config.num_layers), window);
  if (types && std::find(types->begin(), types->end(), window == 0) != types->end()) {
    return unsupported_field("layer_types",
                             "layer_types that disagree with sliding_window are not supported for "
                             "mistral");
  }
  return {};
}

// Qwen2 and Qwen3: `layer_types` says which layers slide; without it those from max_window_layers
// on.
Status parse_qwen_window(Fields& fields, ModelConfig& config) {
  BA_ASSIGN_OR_RETURN(const bool used, fields.boolean("use_sliding_window", false));
  BA_ASSIGN_OR_RETURN(int64_t window, parse_window(fields));
  if (!used) window = 0;
  int64_t first = 28;  // the default of both classes; 0 is a legal value
  if (const Json* value = fields.find("max_window_layers")) {
    if (!value->is_number_unsigned()) return wrong_field("max_window_layers", "is not a count");
    first = value->get<int64_t>();
  }
  BA_ASSIGN_OR_RETURN(const auto types, parse_layer_types(fields, config.num_layers));
  config.sliding_window.assign(static_cast<size_t>(config.num_layers), 0);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool slides = types ? (*types)[at] : i >= first;
    if (types && slides && window == 0) {
      return wrong_field("layer_types", "names sliding_attention, but no sliding_window is in use");
    }
    if (slides) config.sliding_window[at] = window;
  }
  return {};
}

Status parse_sliding_window(Fields& fields, ModelConfig& config) {
  switch (config.family) {
    case ModelFamily::kLlama:
      if (fields.find("sliding_window") != nullptr) {
        return unsupported_field("sliding_window", "sliding_window is not supported for llama");
      }
      config.sliding_window.assign(static_cast<size_t>(config.num_layers), 0);
      return {};
    case ModelFamily::kMistral:
      return parse_mistral_window(fields, config);
    case ModelFamily::kQwen2:
    case ModelFamily::kQwen3:
      return parse_qwen_window(fields, config);
  }
  BA_CHECK(false, "unknown family");
}

double yarn_mscale(double scale, double mscale) {
  return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

Status parse_yarn(Fields& rope_fields, const ModelConfig& config, RopeConfig& rope) {
  const double implied_factor =
      static_cast<double>(config.max_position_embeddings) / rope.original_max_position_embeddings;
  BA_ASSIGN_OR_RETURN(rope.factor, rope_fields.positive("factor", implied_factor));
  // 0 means "the default" to transformers (`x or 32`).
  BA_ASSIGN_OR_RETURN(const double beta_fast, rope_fields.number("beta_fast", 32.0));
  BA_ASSIGN_OR_RETURN(const double beta_slow, rope_fields.number("beta_slow", 1.0));
  rope.beta_fast = beta_fast == 0.0 ? 32.0 : beta_fast;
  rope.beta_slow = beta_slow == 0.0 ? 1.0 : beta_slow;
  if (rope.beta_fast < 0.0 || rope.beta_slow < 0.0) {
    return wrong_field("beta_fast", "and beta_slow must not be negative");
  }
  BA_ASSIGN_OR_RETURN(rope.truncate, rope_fields.boolean("truncate", true));
  BA_ASSIGN_OR_RETURN(const double mscale, rope_fields.number("mscale", 0.0));
  BA_ASSIGN_OR_RETURN(const double mscale_all_dim, rope_fields.number("mscale_all_dim", 0.0));
  double implied_attention = yarn_mscale(rope.factor, 1.0);
  if (mscale != 0.0 && mscale_all_dim != 0.0) {
    implied_attention = yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, mscale_all_dim);
  }
  BA_ASSIGN_OR_RETURN(rope.attention_factor,
                      rope_fields.number("attention_factor", implied_attention));
  return {};
}

Status parse_rope_type(Fields& rope_fields, const std::string& type, const ModelConfig& config,
                       RopeConfig& rope) {
  if (type == "default") {
    rope.type = RopeType::kDefault;
    // transformers ignores these for the default type; configs in the wild repeat them.
    for (const char* key : {"factor", "original_max_position_embeddings"}) rope_fields.ignore(key);
    return {};
  }
  if (type == "linear") {
    rope.type = RopeType::kLinear;
    BA_ASSIGN_OR_RETURN(rope.factor, rope_fields.positive("factor", std::nullopt));
    rope_fields.ignore("original_max_position_embeddings");
    return {};
  }
  if (type != "llama3" && type != "yarn") {
    return unsupported_field("rope_type", fmt::format("RoPE type '{}' is not supported; there are "
                                                      "default, linear, llama3, yarn",
                                                      type));
  }
  BA_ASSIGN_OR_RETURN(rope.original_max_position_embeddings,
                      rope_fields.positive("original_max_position_embeddings",
                                           static_cast<double>(config.max_position_embeddings)));
  if (type == "yarn") {
    rope.type = RopeType::kYarn;
    return parse_yarn(rope_fields, config, rope);
  }
  rope.type = RopeType::kLlama3;
  BA_ASSIGN_OR_RETURN(rope.factor, rope_fields.positive("factor", std::nullopt));
  BA_ASSIGN_OR_RETURN(rope.low_freq_factor, rope_fields.positive("low_freq_factor", std::nullopt));
  BA_ASSIGN_OR_RETURN(rope.high_freq_factor,
                      rope_fields.positive("high_freq_factor", std::nullopt));
  if (!(rope.high_freq_factor > rope.low_freq_factor)) {
    return wrong_field("high_freq_factor", "must exceed low_freq_factor");
  }
  return {};
}

// transformers 5 writes `rope_parameters` {rope_type, rope_theta, …}; transformers 4 wrote
// `rope_theta` beside `rope_scaling` {rope_type or type, …}. As in transformers, a non-empty
// rope_scaling wins over rope_parameters, and an inner rope_theta over the outer one.
Status parse_rope(Fields& fields, ModelConfig& config) {
  static const Json kEmpty = Json::object();
  BA_ASSIGN_OR_RETURN(const double outer_theta, fields.positive("rope_theta", 10000.0));
  const Json* parameters = fields.find("rope_parameters");
  const Json* scaling = fields.find("rope_scaling");
  std::string name = "rope_parameters";
  const Json* chosen = parameters;
  if (scaling != nullptr && !scaling->empty()) {
    chosen = scaling;
    name = "rope_scaling";
  }
  if (chosen == nullptr) chosen = &kEmpty;
  if (!chosen->is_object()) return wrong_field(name, "is not an object");
  for (const auto& [key, value] : chosen->items()) {
    if (value.is_object()) {
      return unsupported_field(name,
                               fmt::format("{} by layer type ('{}') is not supported", name, key));
    }
  }
  Fields rope_fields(*chosen, name + ".");
  BA_ASSIGN_OR_RETURN(config.rope.theta, rope_fields.positive("rope_theta", outer_theta));
  BA_ASSIGN_OR_RETURN(const std::string old_type, rope_fields.text("type", "default"));
  BA_ASSIGN_OR_RETURN(const std::string type, rope_fields.text("rope_type", old_type));
  for (Fields* where : {&fields, &rope_fields}) {
    BA_ASSIGN_OR_RETURN(const double part, where->number("partial_rotary_factor", 1.0));
    if (part != 1.0) {
      return unsupported_field("partial_rotary_factor",
                               fmt::format("partial_rotary_factor {} is not supported", part));
    }
  }
  BA_RETURN_IF_ERROR(parse_rope_type(rope_fields, type, config, config.rope));
  return rope_fields.refuse_rest();
}

Status parse_fixed_fields(Fields& fields) {
  BA_ASSIGN_OR_RETURN(const std::string activation, fields.text("hidden_act", "silu"));
  if (activation != "silu") {
    return unsupported_field("hidden_act", fmt::format("hidden_act '{}' is not supported; there is "
                                                       "silu",
                                                       activation));
  }
  if (const Json* quantized = fields.find("quantization_config");
      quantized != nullptr && !quantized->empty()) {
    return unsupported(
        "config.json: quantization_config: already quantized weights are not supported",
        "quantization_config", "search on the unquantized model");
  }
  for (const char* key : {"rope_interleaved", "is_encoder_decoder", "is_decoder",
                          "add_cross_attention", "tie_encoder_decoder", "use_bfloat16"}) {
    BA_RETURN_IF_ERROR(expect_flag(fields, key, false));
  }
  for (const char* key : kIgnoredFields) fields.ignore(key);
  return fields.refuse_rest();
}

const char* rope_type_name(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
  }
  BA_CHECK(false, "unknown RoPE type");
}

// Where a dimension rotates `rotations` times over the original context (YaRN, section 3.2).
double yarn_correction_dim(double rotations, const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  return static_cast<double>(config.head_dim) *
         std::log(rope.original_max_position_embeddings / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

void scale_yarn(const ModelConfig& config, std::vector<float>& inverse) {
  const RopeConfig& rope = config.rope;
  double low = yarn_correction_dim(rope.beta_fast, config);
  double high = yarn_correction_dim(rope.beta_slow, config);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;  // as transformers does, against a division by zero
  for (size_t i = 0; i < inverse.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F,
        1.0F);
    const float extrapolated = 1.0F - ramp;
    const float period = 1.0F / inverse[i];
    const float interpolated_inverse = 1.0F / (static_cast<float>(rope.factor) * period);
    inverse[i] = interpolated_inverse * (1.0F - extrapolated) + inverse[i] * extrapolated;
  }
}

void scale_llama3(const RopeConfig& rope, std::vector<float>& inverse) {
  const double context = rope.original_max_position_embeddings;
  const auto low_wavelength = static_cast<float>(context / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(context / rope.high_freq_factor);
  const auto factor = static_cast<float>(rope.factor);
  for (float& frequency : inverse) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      frequency /= factor;
      continue;
    }
    const float smooth =
        (static_cast<float>(context) / wavelength - static_cast<float>(rope.low_freq_factor)) /
        static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
    frequency = (1.0F - smooth) * frequency / factor + smooth * frequency;
  }
}

}  // namespace

const char* model_family_name(ModelFamily family) {
  for (const auto& row : kFamilies) {
    if (row.family == family) return row.model_type;
  }
  BA_CHECK(false, "unknown family");
}

Result<ModelConfig> parse_model_config(std::string_view json_text) {
  BA_ASSIGN_OR_RETURN(const Json root, parse_json(json_text, "config.json"));
  if (!root.is_object()) {
    return invalid_argument("config.json is not a JSON object", "config.json");
  }
  Fields fields(root, "");
  ModelConfig config;
  BA_ASSIGN_OR_RETURN(config.family, parse_family(fields));
  BA_RETURN_IF_ERROR(parse_sizes(fields, config));
  BA_RETURN_IF_ERROR(parse_biases(fields, config));
  BA_RETURN_IF_ERROR(parse_dtype(fields, config));
  BA_RETURN_IF_ERROR(parse_sliding_window(fields, config));
  BA_RETURN_IF_ERROR(parse_rope(fields, config));
  BA_RETURN_IF_ERROR(parse_fixed_fields(fields));
  return config;
}

Result<ModelConfig> load_model_config(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return invalid_argument(fmt::format("no model directory at {}", directory.string()), "model",
                            "give the folder that holds config.json and *.safetensors");
  }
  BA_ASSIGN_OR_RETURN(const std::string text,
                      read_file(directory / "config.json", kMaxConfigBytes));
  return parse_model_config(text);
}

std::string canonical_config_json(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  // nlohmann::json objects are sorted by key.
  const Json rope_json = {
      {"type", rope_type_name(rope.type)},
      {"theta", rope.theta},
      {"factor", rope.factor},
      {"original_max_position_embeddings", rope.original_max_position_embeddings},
      {"low_freq_factor", rope.low_freq_factor},
      {"high_freq_factor", rope.high_freq_factor},
      {"beta_fast", rope.beta_fast},
      {"beta_slow", rope.beta_slow},
      {"truncate", rope.truncate},
      {"attention_factor", rope.attention_factor}};
  const Json all = {{"family", model_family_name(config.family)},
                    {"hidden_size", config.hidden_size},
                    {"intermediate_size", config.intermediate_size},
                    {"num_layers", config.num_layers},
                    {"num_heads", config.num_heads},
                    {"num_kv_heads", config.num_kv_heads},
                    {"head_dim", config.head_dim},
                    {"vocab_size", config.vocab_size},
                    {"rms_norm_eps", config.rms_norm_eps},
                    {"tie_word_embeddings", config.tie_word_embeddings},
                    {"qkv_bias", config.qkv_bias},
                    {"o_bias", config.o_bias},
                    {"mlp_bias", config.mlp_bias},
                    {"sliding_window", config.sliding_window},
                    {"rope", rope_json}};
  return all.dump();
}

std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  std::vector<float> inverse(static_cast<size_t>(config.head_dim / 2));
  const auto theta = static_cast<float>(config.rope.theta);
  for (size_t i = 0; i < inverse.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    inverse[i] = 1.0F / std::pow(theta, exponent);
  }
  switch (config.rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (float& frequency : inverse) frequency /= static_cast<float>(config.rope.factor);
      break;
    case RopeType::kLlama3:
      scale_llama3(config.rope, inverse);
      break;
    case RopeType::kYarn:
      scale_yarn(config, inverse);
      break;
  }
  return inverse;
}

}  // namespace bitalloc
