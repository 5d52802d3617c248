#include "common/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <sstream>
#include <thread>

#include "common/sha256.h"
#include "common/weight_parts.h"

namespace bitalloc {
namespace {

// Tensors that old exports carry and that the network recomputes.
bool is_harmless(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

bool is_weight_dtype(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16;
}

// Exponent bits of a float dtype: all of them set means infinity or NaN.
template <typename Word>
bool any_not_finite(std::span<const std::byte> bytes, Word exponent_mask) {
  // Blocks keep the inner loop free of branches, so that it becomes vector code.
  constexpr size_t kBlock = 4096;
  const size_t count = bytes.size() / sizeof(Word);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    Word words[kBlock];
    std::memcpy(words, bytes.data() + begin * sizeof(Word), n * sizeof(Word));
    unsigned found = 0;
    for (size_t i = 0; i < n; ++i) found |= (words[i] & exponent_mask) == exponent_mask ? 1U : 0U;
    if (found != 0) return true;
  }
  return false;
}

bool has_not_finite(const TensorView& tensor) {
  switch (tensor.dtype) {
    case Dtype::kF32:
      return any_not_finite<uint32_t>(tensor.bytes, 0x7F800000U);
    case Dtype::kF16:
      return any_not_finite<uint16_t>(tensor.bytes, 0x7C00U);
    case Dtype::kBf16:
      return any_not_finite<uint16_t>(tensor.bytes, 0x7F80U);
    default:
      BA_CHECK(false, "weights are F32, F16 or BF16 by now");
  }
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct WeightCheck {
  std::string sha256;
  bool not_finite = false;
};

// Large tensors first, so that no thread, and no part, gets the largest last.
std::vector<const TensorView*> largest_first(std::vector<const TensorView*> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto* a, const auto* b) { return a->bytes.size() > b->bytes.size(); });
  return tensors;
}

// Reads every byte once, on several threads; the order of threads cannot show in the result.
std::vector<WeightCheck> read_weights(const std::vector<const TensorView*>& tensors, int threads) {
  std::vector<WeightCheck> checks(tensors.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t at = next++; at < tensors.size(); at = next++) {
      checks[at] = {sha256_hex(as_text(tensors[at]->bytes)), has_not_finite(*tensors[at])};
    }
  };
  const int available = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int count = std::clamp(threads > 0 ? threads : available, 1, 64);
  std::vector<std::jthread> pool;
  for (int i = 1; i < count; ++i) pool.emplace_back(work);
  work();
  pool.clear();
  return checks;
}

Status check_tensor(const TensorView& tensor, const std::vector<int64_t>& shape) {
  if (!is_weight_dtype(tensor.dtype)) {
    return invalid_argument(fmt::format("{}: tensor '{}' is {}; there are F32, F16, BF16",
                                        tensor.file, tensor.name, dtype_name(tensor.dtype)),
                            tensor.name);
  }
  if (tensor.shape != shape) {
    return invalid_argument(
        fmt::format("{}: tensor '{}' has shape {}, config.json says {}", tensor.file, tensor.name,
                    shape_text(tensor.shape), shape_text(shape)),
        tensor.name, "config.json and the weights do not belong together");
  }
  return {};
}

// A tied model may carry its output layer as well, if it is the embedding's copy.
Status check_tied_copy(const SafetensorsReader& tensors, const TensorView& head) {
  const TensorView* embedding = tensors.find("model.embed_tokens.weight");
  const bool same = embedding != nullptr && head.dtype == embedding->dtype &&
                    head.shape == embedding->shape &&
                    std::equal(head.bytes.begin(), head.bytes.end(), embedding->bytes.begin());
  if (same) return {};
  return invalid_argument(
      fmt::format("{}: tensor 'lm_head.weight' differs from model.embed_tokens.weight, but "
                  "config.json says tie_word_embeddings",
                  head.file),
      "tie_word_embeddings");
}

// Every expected tensor is there with its shape; whatever else is there is harmless.
Result<std::vector<const TensorView*>> check_tensors(const SafetensorsReader& reader,
                                                     const ModelConfig& config) {
  std::map<std::string, const TensorView*> used;
  for (const auto& [name, shape] : expected_tensors(config)) {
    const TensorView* tensor = reader.find(name);
    if (tensor == nullptr) {
      return invalid_argument(fmt::format("{}: tensor '{}' is missing",
                                          reader.files().front().filename().string(), name),
                              name, "config.json and the weights do not belong together");
    }
    BA_RETURN_IF_ERROR(check_tensor(*tensor, shape));
    used[name] = tensor;
  }
  for (const auto& [name, tensor] : reader.tensors()) {
    if (used.contains(name) || is_harmless(name)) continue;
    if (config.tie_word_embeddings && name == "lm_head.weight") {
      BA_RETURN_IF_ERROR(check_tied_copy(reader, tensor));
      continue;
    }
    return invalid_argument(
        fmt::format("{}: tensor '{}' has no place in a {} model of this configuration", tensor.file,
                    name, model_family_name(config.family)),
        name, "config.json and the weights do not belong together");
  }
  std::vector<const TensorView*> sorted;
  for (const auto& [name, tensor] : used) sorted.push_back(tensor);
  return sorted;
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& c) {
  const int64_t q_width = c.num_heads * c.head_dim;
  std::vector<ExpectedTensor> all = {{"model.embed_tokens.weight", {c.vocab_size, c.hidden_size}},
                                     {"model.norm.weight", {c.hidden_size}}};
  if (!c.tie_word_embeddings) all.push_back({"lm_head.weight", {c.vocab_size, c.hidden_size}});
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    all.push_back({name + ".weight", {out, in}});
    if (bias) all.push_back({name + ".bias", {out}});
  };
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    all.push_back({layer + "input_layernorm.weight", {c.hidden_size}});
    all.push_back({layer + "post_attention_layernorm.weight", {c.hidden_size}});
    linear(layer + "self_attn.q_proj", q_width, c.hidden_size, c.qkv_bias);
    linear(layer + "self_attn.k_proj", c.k_width(), c.hidden_size, c.qkv_bias);
    linear(layer + "self_attn.v_proj", c.v_width(), c.hidden_size, c.qkv_bias);
    linear(layer + "self_attn.o_proj", c.hidden_size, q_width, c.o_bias);
    if (c.qk_norm) {
      all.push_back({layer + "self_attn.q_norm.weight", {c.head_dim}});
      all.push_back({layer + "self_attn.k_norm.weight", {c.head_dim}});
    }
    linear(layer + "mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    linear(layer + "mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    linear(layer + "mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
  }
  return all;
}

std::vector<Site> kv_sites(const ModelConfig& config) {
  std::vector<Site> sites;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    sites.push_back({fmt::format("model.layers.{}.self_attn", layer), layer, config.k_width(),
                     config.v_width(), config.head_dim});
  }
  return sites;
}

Result<ModelFiles> inspect_model(const std::filesystem::path& directory,
                                 const InspectOptions& options) {
  ModelFiles files;
  files.directory = directory;
  BA_ASSIGN_OR_RETURN(files.config, load_model_config(directory));
  BA_ASSIGN_OR_RETURN(files.tensors, SafetensorsReader::open_model(directory));
  BA_ASSIGN_OR_RETURN(const auto tensors, check_tensors(*files.tensors, files.config));
  for (const auto* tensor : tensors) files.parameters += tensor->numel();
  files.kv_sites = kv_sites(files.config);
  files.config_sha256 = sha256_hex(canonical_config_json(files.config));
  if (options.read_weights) {
    BA_ASSIGN_OR_RETURN(const std::string all, hash_weight_part(files, 0, 1, options.threads));
    BA_ASSIGN_OR_RETURN(files.weights_sha256, join_weight_parts(files, {all}));
  }
  return files;
}

Result<std::string> hash_weight_part(const ModelFiles& files, int part, int parts, int threads) {
  BA_ASSIGN_OR_RETURN(auto all, check_tensors(*files.tensors, files.config));
  all = largest_first(std::move(all));
  std::vector<const TensorView*> own;
  for (size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int>(i) % parts == part) own.push_back(all[i]);
  }
  const std::vector<WeightCheck> checks = read_weights(own, threads);
  std::string text;
  for (size_t i = 0; i < own.size(); ++i) {
    if (checks[i].not_finite) {
      return invalid_argument(
          fmt::format("{}: tensor '{}' holds NaN or infinite weights", own[i]->file, own[i]->name),
          own[i]->name, "the checkpoint is damaged");
    }
    text += fmt::format("{} {}\n", own[i]->name, checks[i].sha256);
  }
  return text;
}

Result<std::string> join_weight_parts(const ModelFiles& files,
                                      const std::vector<std::string>& parts) {
  std::map<std::string, std::string> hashes;
  for (const std::string& part : parts) {
    std::istringstream lines(part);
    std::string name;
    std::string hash;
    while (lines >> name >> hash) hashes[name] = hash;
  }
  BA_ASSIGN_OR_RETURN(const auto tensors, check_tensors(*files.tensors, files.config));
  std::string summary;
  for (const TensorView* tensor : tensors) {
    const auto found = hashes.find(tensor->name);
    if (found == hashes.end() || hashes.size() != tensors.size()) {
      return mismatch("the ranks look at models of other tensors", "model.path",
                      "mount the same model directory everywhere");
    }
    summary += fmt::format("{} {} {} {}\n", tensor->name, dtype_name(tensor->dtype),
                           shape_text(tensor->shape), found->second);
  }
  return sha256_hex(summary);
}

}  // namespace bitalloc
