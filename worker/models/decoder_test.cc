// Logits of every family against transformers 5.24: tests/oracle/make_models.py wrote the expected
// values under tests/fixtures.
#include "worker/models/decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/model_files.h"
#include "worker/models/families.h"

namespace bitalloc {
namespace {

const std::filesystem::path kFixtures =
    std::filesystem::path(BITALLOC_SOURCE_DIR) / "tests/fixtures";

struct Expected {
  at::Tensor ids;     // int64 [sequences, tokens]
  at::Tensor mask;    // bool
  at::Tensor logits;  // float32 [sequences, tokens, vocab]
};

Expected read_expected(const std::filesystem::path& file) {
  const auto reader = SafetensorsReader::open_file(file);
  EXPECT_TRUE(reader.ok()) << reader.error().message;
  const auto tensor = [&](const char* name, auto values) {
    return at::tensor(values).view((*reader)->find(name)->shape);
  };
  const auto& tensors = (*reader)->tensors();
  return {tensor("input_ids", read_integers(tensors.at("input_ids")).value()),
          tensor("attention_mask", read_integers(tensors.at("attention_mask")).value()) == 1,
          tensor("logits", read_floats(tensors.at("logits")).value())};
}

// float32 logits [sequences, tokens, vocab].
at::Tensor run(const std::filesystem::path& model, const Expected& expected,
               c10::ScalarType dtype) {
  const c10::InferenceMode guard;
  const auto files = inspect_model(model);
  EXPECT_TRUE(files.ok()) << files.error().message;
  const Decoder decoder = load_decoder(*files, at::kCPU, dtype);
  const TokenContext context = decoder.make_token_context(expected.mask);
  const at::Tensor normed = decoder.forward(expected.ids, context, ExactKv());
  return decoder.logits(normed.flatten(0, 1)).view(expected.logits.sizes());
}

class TinyModel : public testing::TestWithParam<const char*> {};

TEST_P(TinyModel, LogitsEqualTransformersInFloat32) {
  const auto directory = kFixtures / "tiny" / GetParam();
  const Expected expected = read_expected(directory / "expected.safetensors");
  const at::Tensor difference =
      (run(directory, expected, at::kFloat) - expected.logits).index({expected.mask}).abs();
  const double largest = difference.max().item<double>();
  EXPECT_FALSE(!(largest <= 1e-4)) << largest;
  // The comparison would be empty if the logits were all alike.
  EXPECT_GT(expected.logits.std().item<double>(), 0.5);
}

INSTANTIATE_TEST_SUITE_P(Families, TinyModel,
                         testing::Values("llama", "llama_linear", "mistral", "qwen2",
                                         "qwen2_sharded", "qwen3", "qwen3_yarn"),
                         [](const auto& info) { return std::string(info.param); });

// transformers rounds logits to bfloat16; ours are float32, so they are rounded the same way first.
TEST(SmallModel, KlToTransformersInBfloat16) {
  const Expected expected = read_expected(kFixtures / "small/expected_bf16.safetensors");
  const at::Tensor ours = run(kFixtures / "small/model", expected, at::kBFloat16);
  const at::Tensor log_q = at::log_softmax(ours.to(at::kBFloat16).to(at::kDouble), -1);
  const at::Tensor log_p = at::log_softmax(expected.logits.to(at::kDouble), -1);
  const double kl = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item<double>();
  // Not nearer than transformers to itself: its logits of the fixture's CPU and of another kind of
  // CPU, whose bfloat16 products add up in another order, are 1.1e-4 apart.
  EXPECT_FALSE(!(kl <= 2e-4)) << kl;
}

TEST(Decoder, SuffixFromAnyLayerEqualsTheWholePass) {
  const c10::InferenceMode guard;
  const auto directory = kFixtures / "tiny/qwen3";
  const Expected expected = read_expected(directory / "expected.safetensors");
  const auto files = inspect_model(directory);
  const Decoder decoder = load_decoder(*files, at::kCPU, at::kFloat);
  const TokenContext context = decoder.make_token_context(expected.mask);
  const at::Tensor whole = decoder.forward(expected.ids, context, ExactKv());
  at::Tensor entering = decoder.embed(expected.ids);
  for (size_t start = 0; start < decoder.layers.size(); ++start) {
    at::Tensor hidden = entering;
    for (size_t i = start; i < decoder.layers.size(); ++i) {
      hidden = decoder.layers[i].forward(hidden, context, static_cast<int64_t>(i), ExactKv());
    }
    EXPECT_TRUE(at::equal(decoder.final_norm(hidden), whole)) << "from layer " << start;
    entering =
        decoder.layers[start].forward(entering, context, static_cast<int64_t>(start), ExactKv());
  }
}

}  // namespace
}  // namespace bitalloc
