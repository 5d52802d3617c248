// Model directories: what is accepted, and what is refused by which name. The directories are
// copies of tests/fixtures/tiny with one thing changed.
#include "common/model_files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "common/files.h"
#include "common/json.h"
#include "common/weight_parts.h"

namespace bitalloc {
namespace {

namespace fs = std::filesystem;
const fs::path kTiny = fs::path(BITALLOC_SOURCE_DIR) / "tests/fixtures/tiny";

Json config_of(const std::string& model) {
  return parse_json(read_file(kTiny / model / "config.json").value(), "config.json").value();
}

Result<ModelConfig> with(const std::string& model, const std::function<void(Json&)>& change) {
  Json config = config_of(model);
  change(config);
  return parse_model_config(config.dump());
}

void expect_refused(const Result<ModelConfig>& config, ErrorCode code, const std::string& words) {
  ASSERT_FALSE(config.ok()) << "accepted instead of: " << words;
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_NE(config.error().message.find("config.json"), std::string::npos);
  EXPECT_NE(config.error().message.find(words), std::string::npos) << config.error().message;
}

TEST(ModelConfig, RefusesByNameWhatItDoesNotImplement) {
  const auto set = [](const char* key, const Json& value) {
    return [=](Json& config) { config[key] = value; };
  };
  const struct {
    const char* model;
    const char* key;
    Json value;
    const char* words;
  } kCases[] = {
      {"llama", "model_type", "gemma3", "model_type 'gemma3'"},
      {"llama", "architectures", {"LlamaForSequenceClassification"}, "architectures"},
      {"llama", "hidden_act", "gelu", "hidden_act 'gelu'"},
      {"llama", "partial_rotary_factor", 0.5, "partial_rotary_factor"},
      {"llama", "sliding_window", 16, "sliding_window"},
      {"llama", "attention_multiplier", 0.1, "attention_multiplier"},
      {"llama", "final_logit_softcapping", 30.0, "final_logit_softcapping"},
      {"llama", "num_local_experts", 8, "num_local_experts"},
      {"llama", "rope_interleaved", true, "rope_interleaved"},
      {"llama", "torch_dtype", "float8_e4m3fn", "float8_e4m3fn"},
      {"llama", "quantization_config", {{"quant_method", "gptq"}}, "quantization_config"},
      {"llama", "rope_scaling", {{"rope_type", "longrope"}, {"factor", 2.0}}, "longrope"},
      {"llama", "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}, "dynamic"},
      {"llama",
       "rope_scaling",
       {{"rope_type", "linear"}, {"factor", 2.0}, {"x", 1}},
       "rope_scaling.x"},
      {"mistral", "attention_bias", true, "attention_bias"},
      {"mistral",
       "layer_types",
       {"full_attention", "full_attention", "full_attention"},
       "layer_types"},
      {"qwen2",
       "layer_types",
       {"full_attention", "full_attention", "chunked_attention"},
       "chunked_attention"},
      {"qwen3", "mlp_bias", true, "mlp_bias"},
      {"qwen3",
       "rope_parameters",
       {{"full_attention", {{"rope_type", "default"}}}},
       "full_attention"},
  };
  for (const auto& c : kCases) {
    expect_refused(with(c.model, set(c.key, c.value)), ErrorCode::kUnsupported, c.words);
  }
}

TEST(ModelConfig, RefusesMalformedFields) {
  const struct {
    const char* model;
    const char* key;
    Json value;
  } kCases[] = {
      {"llama", "hidden_size", Json()},       {"llama", "hidden_size", "48"},
      {"llama", "hidden_size", -48},          {"llama", "num_hidden_layers", 0},
      {"llama", "num_hidden_layers", 1e9},    {"llama", "num_key_value_heads", 4},
      {"llama", "rms_norm_eps", -1.0},        {"qwen3", "head_dim", 7},
      {"llama", "attention_bias", 1},         {"qwen2", "layer_types", {"full_attention"}},
      {"qwen2", "use_sliding_window", false},
  };
  for (const auto& c : kCases) {
    const auto config = with(c.model, [&](Json& json) { json[c.key] = c.value; });
    ASSERT_FALSE(config.ok()) << c.key << " " << c.value;
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument) << config.error().message;
    EXPECT_NE(config.error().message.find("config.json"), std::string::npos);
  }
  EXPECT_FALSE(parse_model_config("").ok());
  EXPECT_FALSE(parse_model_config("[]").ok());
  EXPECT_FALSE(parse_model_config(std::string(1 << 16, '[')).ok());
}

TEST(ModelConfig, ReadsBothSpellings) {
  // transformers 4: rope_theta beside rope_scaling, torch_dtype.
  const auto old_spelling = parse_model_config(config_of("llama").dump());
  ASSERT_TRUE(old_spelling.ok()) << old_spelling.error().message;
  const auto new_spelling = with("llama", [](Json& config) {
    Json rope = config["rope_scaling"];
    rope["rope_theta"] = config["rope_theta"];
    config["rope_parameters"] = rope;
    config["dtype"] = config["torch_dtype"];
    for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) config.erase(key);
  });
  ASSERT_TRUE(new_spelling.ok()) << new_spelling.error().message;
  EXPECT_EQ(canonical_config_json(*old_spelling), canonical_config_json(*new_spelling));
  EXPECT_EQ(new_spelling->rope.type, RopeType::kLlama3);
  EXPECT_EQ(new_spelling->rope.theta, 500000.0);
  EXPECT_EQ(new_spelling->dtype, Dtype::kBf16);
}

TEST(ModelConfig, ReadsSlidingWindows) {
  EXPECT_EQ(parse_model_config(config_of("mistral").dump())->sliding_window,
            (std::vector<int64_t>{7, 7, 7}));
  EXPECT_EQ(with("mistral", [](Json& c) { c["sliding_window"] = nullptr; })->sliding_window,
            (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(parse_model_config(config_of("qwen2").dump())->sliding_window,
            (std::vector<int64_t>{0, 0, 9}));
  EXPECT_EQ(with("qwen2", [](Json& c) { c.erase("layer_types"); })->sliding_window,
            (std::vector<int64_t>{0, 0, 9}));
  EXPECT_EQ(parse_model_config(config_of("qwen3").dump())->sliding_window,
            (std::vector<int64_t>{0, 0, 0}));
}

// YaRN's attention factor without mscale: 0.1·ln(factor) + 1 (arXiv 2309.00071, section 3.4).
TEST(ModelConfig, YarnAttentionFactor) {
  EXPECT_NEAR(parse_model_config(config_of("qwen3").dump())->rope.attention_factor,
              0.1 * std::log(4.0) + 1.0, 1e-12);
  EXPECT_EQ(with("qwen3", [](Json& c) { c["rope_parameters"]["attention_factor"] = 1.25; })
                ->rope.attention_factor,
            1.25);
}

class ModelDirectory : public testing::Test {
 protected:
  ModelDirectory() {
    directory_ = fs::temp_directory_path() / ("model_files_test_" + std::to_string(::getpid()));
    use("qwen3");
  }
  ~ModelDirectory() override { fs::remove_all(directory_); }

  void use(const std::string& model) {
    fs::remove_all(directory_);
    fs::copy(kTiny / model, directory_);
  }

  void edit_config(const std::function<void(Json&)>& change) {
    Json config = parse_json(read_file(directory_ / "config.json").value(), "config.json").value();
    change(config);
    std::ofstream(directory_ / "config.json") << config.dump();
  }

  // Overwrites bytes of a tensor in the file.
  void poke(const std::string& tensor, size_t at, uint16_t bits) {
    const fs::path file = directory_ / "model.safetensors";
    const auto reader = SafetensorsReader::open_file(file).value();
    std::string content = read_file(file).value();
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, content.data(), 8);
    const std::byte* first = reader->tensors().begin()->second.bytes.data();
    for (const auto& [name, view] : reader->tensors()) first = std::min(first, view.bytes.data());
    const size_t offset = static_cast<size_t>(reader->find(tensor)->bytes.data() - first);
    std::memcpy(content.data() + 8 + header_bytes + offset + at, &bits, 2);
    std::ofstream(file, std::ios::binary) << content;
  }

  // Writes the file again with tensors changed by `change`.
  void rewrite(const std::function<void(std::vector<TensorToWrite>&)>& change) {
    const fs::path file = directory_ / "model.safetensors";
    const auto reader = SafetensorsReader::open_file(file).value();
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, view] : reader->tensors()) {
      tensors.push_back({name, view.dtype, view.shape, view.bytes});
    }
    change(tensors);
    ASSERT_TRUE(write_safetensors(file, tensors).ok());
  }

  std::string refusal(ErrorCode code = ErrorCode::kInvalidArgument) {
    const auto files = inspect_model(directory_);
    if (files.ok()) return "accepted";
    EXPECT_EQ(files.error().code, code) << files.error().message;
    return files.error().message;
  }

  fs::path directory_;
};

TEST_F(ModelDirectory, AcceptsEveryFixture) {
  for (const char* model :
       {"llama", "llama_linear", "mistral", "qwen2", "qwen2_sharded", "qwen3", "qwen3_yarn"}) {
    const auto files = inspect_model(kTiny / model);
    ASSERT_TRUE(files.ok()) << model << ": " << files.error().message;
    EXPECT_EQ(files->kv_sites.size(), 3U);
    EXPECT_EQ(files->weights_sha256.size(), 64U);
  }
  const auto small = inspect_model(fs::path(BITALLOC_SOURCE_DIR) / "tests/fixtures/small/model");
  ASSERT_TRUE(small.ok()) << small.error().message;
  EXPECT_EQ(small->kv_sites[3].name, "model.layers.3.self_attn");
  EXPECT_EQ(small->kv_sites[3].k_width, 64);
  // 12·(2·128·128 + 2·128·64 + 3·128·384 + 2·128 + 2·32) + 2048·128 + 128
  EXPECT_EQ(small->parameters, 2'625'408);
}

TEST_F(ModelDirectory, MissingParts) {
  fs::remove(directory_ / "model.safetensors");
  EXPECT_NE(refusal().find("model.safetensors"), std::string::npos);
  fs::remove(directory_ / "config.json");
  EXPECT_NE(refusal().find("config.json"), std::string::npos);
  fs::remove_all(directory_);
  EXPECT_NE(refusal().find(directory_.string()), std::string::npos);
}

TEST_F(ModelDirectory, TruncatedFileNamesFileAndTensor) {
  const fs::path file = directory_ / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 100);
  const std::string message = refusal();
  EXPECT_NE(message.find("model.safetensors: tensor '"), std::string::npos) << message;
  EXPECT_NE(message.find("truncated"), std::string::npos) << message;
}

TEST_F(ModelDirectory, WrongShapeNamesTensorAndBothShapes) {
  edit_config([](Json& config) { config["intermediate_size"] = 64; });
  const std::string message = refusal();
  EXPECT_NE(message.find("gate_proj.weight' has shape [80, 48], config.json says [64, 48]"),
            std::string::npos)
      << message;
}

TEST_F(ModelDirectory, MissingAndSurplusTensors) {
  edit_config([](Json& config) { config["num_hidden_layers"] = 4; });
  edit_config([](Json& config) { config.erase("layer_types"); });
  EXPECT_NE(refusal().find("'model.layers.3."), std::string::npos);
  edit_config([](Json& config) { config["num_hidden_layers"] = 2; });
  const std::string message = refusal();
  EXPECT_NE(message.find("'model.layers.2."), std::string::npos) << message;
  EXPECT_NE(message.find("no place"), std::string::npos) << message;
}

TEST_F(ModelDirectory, DtypesThatAreNotWeights) {
  std::vector<std::byte> bytes(16);
  rewrite([&](auto& tensors) {
    for (auto& tensor : tensors) {
      if (tensor.name != "model.layers.1.self_attn.q_norm.weight") continue;
      tensor.dtype = Dtype::kF8E4M3;
      tensor.bytes = bytes;
    }
  });
  EXPECT_NE(refusal().find("'model.layers.1.self_attn.q_norm.weight' is F8_E4M3"),
            std::string::npos);
}

TEST_F(ModelDirectory, NanAndInfiniteWeightsNameTheTensor) {
  const std::string tensor = "model.layers.2.mlp.up_proj.weight";
  poke(tensor, 1000, 0x7FC0);  // NaN
  EXPECT_NE(refusal().find(tensor), std::string::npos);
  poke(tensor, 1000, 0xFF80);  // −infinity
  EXPECT_NE(refusal().find(tensor), std::string::npos);
  poke(tensor, 1000, 0x7F7F);  // the largest finite
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(ModelDirectory, TiedOutputLayerMustBeTheEmbedding) {
  std::vector<std::byte> copy;
  rewrite([&](auto& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.name == "model.embed_tokens.weight") {
        copy.assign(tensor.bytes.begin(), tensor.bytes.end());
        tensors.push_back({"lm_head.weight", tensor.dtype, tensor.shape, copy});
        break;
      }
    }
  });
  EXPECT_EQ(refusal(), "accepted");
  poke("lm_head.weight", 10, 0x3F80);
  EXPECT_NE(refusal().find("lm_head.weight"), std::string::npos);
}

TEST_F(ModelDirectory, HashesAreOfWeightsAndNetwork) {
  const auto original = inspect_model(directory_).value();
  // Another order of tensors in the file, and another thread count: the same weights.
  rewrite([](auto& tensors) { std::reverse(tensors.begin(), tensors.end()); });
  const auto reordered = inspect_model(directory_, {.threads = 1}).value();
  EXPECT_EQ(reordered.weights_sha256, original.weights_sha256);
  // A field that is not the network's.
  edit_config([](Json& config) { config["eos_token_id"] = 5; });
  EXPECT_EQ(inspect_model(directory_)->config_sha256, original.config_sha256);
  edit_config([](Json& config) { config["rms_norm_eps"] = 1e-4; });
  EXPECT_NE(inspect_model(directory_)->config_sha256, original.config_sha256);
  // One bit of one weight.
  poke("model.norm.weight", 4, 0x3F81);
  EXPECT_NE(inspect_model(directory_)->weights_sha256, original.weights_sha256);
}

TEST_F(ModelDirectory, ShardingDoesNotChangeTheHash) {
  use("qwen2_sharded");
  const auto sharded = inspect_model(directory_).value();
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, view] : sharded.tensors->tensors()) {
    tensors.push_back({name, view.dtype, view.shape, view.bytes});
  }
  ASSERT_TRUE(write_safetensors(directory_ / "model.safetensors", tensors).ok());
  const auto single = inspect_model(directory_).value();
  EXPECT_EQ(single.tensors->files().size(), 1U);
  EXPECT_EQ(single.weights_sha256, sharded.weights_sha256);
}

// Several readers, a part of the bytes each, come to the hash of one that reads everything.
TEST(ModelFiles, PartsOfTheWeightsJoinToTheSameIdentity) {
  const ModelFiles whole = inspect_model(kTiny / "qwen3").value();
  const ModelFiles unread = inspect_model(kTiny / "qwen3", {.read_weights = false}).value();
  for (const int parts : {1, 2, 5}) {
    std::vector<std::string> texts;
    for (int part = parts - 1; part >= 0; --part) {
      texts.push_back(hash_weight_part(unread, part, parts, 1).value());
      EXPECT_FALSE(texts.back().empty());
    }
    EXPECT_EQ(join_weight_parts(unread, texts).value(), whole.weights_sha256);
    texts.pop_back();
    EXPECT_EQ(join_weight_parts(unread, texts).error().code, ErrorCode::kMismatch);
  }
}

}  // namespace
}  // namespace bitalloc
