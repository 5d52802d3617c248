// What `config.json` of a Hugging Face model directory says about a network, for the dense families
// Llama, Mistral, Qwen2 and Qwen3. A field that would change the network and that this program does
// not implement is refused by name (kUnsupported): nothing is ever run as something it is not.
// Meaning and defaults of the fields: the configuration classes of transformers 5.24.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/safetensors.h"
#include "common/status.h"

namespace bitalloc {

enum class ModelFamily { kLlama, kMistral, kQwen2, kQwen3 };
const char* model_family_name(ModelFamily family);  // as in `model_type`: "llama", …

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

// Rotary position embedding. Fields that a type does not use keep their defaults.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                            // linear, llama3, yarn
  double original_max_position_embeddings = 0.0;  // llama3, yarn
  double low_freq_factor = 1.0;                   // llama3
  double high_freq_factor = 4.0;                  // llama3
  double beta_fast = 32.0;                        // yarn
  double beta_slow = 1.0;                         // yarn
  bool truncate = true;                           // yarn: round the correction range
  double attention_factor = 1.0;                  // yarn: cos and sin are multiplied by it
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // q_proj, k_proj, v_proj
  bool o_bias = false;    // o_proj
  bool mlp_bias = false;  // gate_proj, up_proj, down_proj
  bool qk_norm = false;   // RMSNorm over head_dim of q and k, before RoPE
  RopeConfig rope;
  // A layer: how many tokens back a query sees, itself included; 0 = all of them.
  std::vector<int64_t> sliding_window;
  Dtype dtype =
      Dtype::kBf16;  // what the file says the weights are meant to be: kF32, kF16 or kBf16

  int64_t k_width() const { return num_kv_heads * head_dim; }
  int64_t v_width() const { return num_kv_heads * head_dim; }
};

// Parses the text of a config.json. Errors name "config.json" and the field: kInvalidArgument for
// something malformed or missing, kUnsupported for something that this program does not implement.
Result<ModelConfig> parse_model_config(std::string_view json_text);
// Reads `directory`/config.json. Errors: as above, kInvalidArgument when there is no such file.
Result<ModelConfig> load_model_config(const std::filesystem::path& directory);

// The fields that decide what the network computes, as canonical JSON (sorted keys, no spaces).
// The same network written in either spelling of transformers 4 and 5 gives the same text.
std::string canonical_config_json(const ModelConfig& config);

// Inverse frequencies of RoPE, [head_dim / 2] in float32 arithmetic as transformers computes them
// (modeling_rope_utils.py; YaRN: arXiv 2309.00071; llama3: Llama 3.1 release).
std::vector<float> rope_inverse_frequencies(const ModelConfig& config);

}  // namespace bitalloc
