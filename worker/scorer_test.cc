// Exact scores against a naive computation: a full forward pass of the whole batch with one layer's
// K and V replaced, and KL as Σ p·(log p − log q) in float64 over the whole vocabulary.
#include "worker/scorer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/token_file.h"
#include "kernels/torch_ops.h"
#include "worker/models/families.h"

namespace bitalloc {
namespace {

namespace fs = std::filesystem;
const fs::path kFixtures = fs::path(BITALLOC_SOURCE_DIR) / "tests/fixtures";
const std::atomic<bool> kNotCancelled{false};

std::vector<Candidate> parse(std::initializer_list<const char*> names) {
  std::vector<Candidate> candidates;
  for (const char* name : names) candidates.push_back(parse_candidate(name).value());
  return candidates;
}

TokenSet tokens_of(const std::string& model) {
  const auto tokens = read_token_file(kFixtures / "tiny" / model / "expected.safetensors");
  EXPECT_TRUE(tokens.ok()) << tokens.error().message;
  return *tokens;
}

std::unique_ptr<Scorer> load(const std::string& model, int threads = 2) {
  auto scorer = Scorer::load(kFixtures / "tiny" / model, {.threads = threads});
  EXPECT_TRUE(scorer.ok()) << scorer.error().message;
  return std::move(scorer).value();
}

std::vector<SiteTask> all_sites(const Scorer& scorer) {
  std::vector<SiteTask> sites;
  for (int i = 0; i < scorer.files().config.num_layers; ++i) sites.push_back({.layer = i});
  return sites;
}

// One layer replaced, by its own code.
class OneLayer final : public KvView {
 public:
  OneLayer(int64_t layer, const Candidate& candidate, float k_amax, float v_amax)
      : layer_(layer), candidate_(candidate), k_amax_(k_amax), v_amax_(v_amax) {}

  SeenKv see(int64_t layer, const KvPair& exact) const override {
    if (layer != layer_ && layer_ >= 0) return exact;
    const auto stored = [](const at::Tensor& x, const Format& format, float amax) {
      return format.kind == FormatKind::kBf16 ? x : fake_quantize(x.contiguous(), format, amax);
    };
    return KvPair{stored(exact.k, candidate_.k, k_amax_), stored(exact.v, candidate_.v, v_amax_)};
  }

 private:
  int64_t layer_;
  Candidate candidate_;
  float k_amax_;
  float v_amax_;
};

class Naive {
 public:
  Naive(const std::string& model, const TokenSet& batch)
      : files_(inspect_model(kFixtures / "tiny" / model).value()),
        decoder_(load_decoder(files_, at::kCPU, at::kFloat)),
        sizes_({batch.sequences, batch.length}) {
    const std::vector<int64_t> ids(batch.input_ids.begin(), batch.input_ids.end());
    const std::vector<int64_t> mask(batch.mask.begin(), batch.mask.end());
    ids_ = at::tensor(ids).view(sizes_);
    mask_ = (at::tensor(mask) == 1).view(sizes_);
  }

  // float64 log probabilities [sequences, tokens, vocab].
  at::Tensor log_probs(const KvView& view) const {
    const at::Tensor normed = decoder_.forward(ids_, decoder_.make_token_context(mask_), view);
    return at::log_softmax(decoder_.logits(normed.flatten(0, 1)).to(at::kDouble), -1)
        .view({sizes_[0], sizes_[1], -1});
  }

  // [sequences] nats.
  at::Tensor kl_sums(const KvView& view) const {
    const at::Tensor log_p = log_probs(ExactKv());
    const at::Tensor kl = (log_p.exp() * (log_p - log_probs(view))).sum(-1);
    return kl.masked_fill(~mask_, 0.0).sum(-1);
  }

  const at::Tensor& ids() const { return ids_; }
  const at::Tensor& mask() const { return mask_; }

 private:
  ModelFiles files_;
  Decoder decoder_;
  std::vector<int64_t> sizes_;
  at::Tensor ids_;
  at::Tensor mask_;
};

void expect_close(double ours, double expected, double relative, const std::string& what) {
  EXPECT_FALSE(!(std::abs(ours - expected) <= relative * std::abs(expected)))
      << what << ": " << ours << " against " << expected;
}

class ScorerOnTiny : public testing::TestWithParam<const char*> {};

// The batch has a whole sequence, one padded on the right, and one padded on the left with a hole.
TEST_P(ScorerOnTiny, EveryScoreEqualsAFullForwardPass) {
  const c10::InferenceMode guard;
  const TokenSet batch = tokens_of(GetParam());
  const Naive naive(GetParam(), batch);
  const auto scorer = load(GetParam());
  const bool blocks_fit = scorer->files().config.head_dim % 16 == 0;
  const auto candidates =
      blocks_fit ? parse({"fp8_e4m3/fp8_e4m3", "nvfp4/nvfp4", "fp8_e4m3/nvfp4",
                          "bf16/nvfp4[encoding=modelopt]", "bf16/bf16"})
                 : parse({"fp8_e4m3/fp8_e4m3", "bf16/fp8_e4m3", "fp8_e4m3/bf16", "bf16/bf16"});
  const auto sites = all_sites(*scorer);
  const auto scores = scorer->score(batch, "batch", sites, candidates, kNotCancelled);
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  EXPECT_EQ(scores->tokens, (std::vector<int64_t>{40, 29, 32}));
  size_t at = 0;
  for (const auto& site : sites) {
    for (const auto& candidate : candidates) {
      const at::Tensor expected = naive.kl_sums(OneLayer(site.layer, candidate, 448, 448));
      for (int64_t s = 0; s < batch.sequences; ++s, ++at) {
        const std::string what =
            fmt::format("layer {} {} sequence {}", site.layer, candidate_name(candidate), s);
        if (candidate == Candidate{}) {
          EXPECT_EQ(scores->kl_sums[at], 0.0) << what;
        } else {
          EXPECT_GT(scores->kl_sums[at], 1e-4) << what;
          expect_close(scores->kl_sums[at], expected[s].item<double>(), 1e-5, what);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ScorerOnTiny,
                         testing::Values("llama", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Scorer, CalibratedScalesAreThoseOfTheSite) {
  const c10::InferenceMode guard;
  const TokenSet batch = tokens_of("qwen3");
  const Naive naive("qwen3", batch);
  const auto scorer = load("qwen3");
  const auto candidates = parse({"fp8_e4m3[scale=calibrated]/nvfp4[scale=calibrated]"});
  const auto scores = scorer->score(batch, "batch", {{.layer = 1, .k_amax = 3.5F, .v_amax = 20.0F}},
                                    candidates, kNotCancelled);
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  const at::Tensor expected = naive.kl_sums(OneLayer(1, candidates[0], 3.5F, 20.0F));
  for (int64_t s = 0; s < batch.sequences; ++s) {
    expect_close(scores->kl_sums[static_cast<size_t>(s)], expected[s].item<double>(), 1e-5, "");
  }
}

// The same bytes, whatever ran before, however sites are cut into units, on one thread or two.
TEST(Scorer, IsDeterministic) {
  const TokenSet batch = tokens_of("qwen3");
  const auto candidates = parse({"fp8_e4m3", "nvfp4"});
  const auto two_threads = load("qwen3");
  const auto sites = all_sites(*two_threads);
  const auto whole = two_threads->score(batch, "a", sites, candidates, kNotCancelled);
  ASSERT_TRUE(whole.ok());
  const TokenSet other = slice(batch, 0, 1);
  ASSERT_TRUE(two_threads->score(other, "b", sites, candidates, kNotCancelled).ok());
  EXPECT_EQ(two_threads->score(batch, "a", sites, candidates, kNotCancelled)->kl_sums,
            whole->kl_sums);
  const auto one_thread = load("qwen3", 1);
  std::vector<double> by_site;
  for (const auto& site : sites) {
    const auto part = one_thread->score(batch, "a", {site}, candidates, kNotCancelled);
    by_site.insert(by_site.end(), part->kl_sums.begin(), part->kl_sums.end());
  }
  EXPECT_EQ(by_site, whole->kl_sums);
}

// Tiles of one token, stacks and tiles as they come: the same values up to rounding.
TEST(Scorer, TilesDoNotShow) {
  const TokenSet batch = tokens_of("qwen3");
  const auto candidates = parse({"fp8_e4m3", "nvfp4", "fp8_e4m3/nvfp4"});
  const auto whole = load("qwen3");
  auto tiled = Scorer::load(kFixtures / "tiny/qwen3", {.threads = 1, .tile_bytes = 1});
  ASSERT_TRUE(tiled.ok());
  const auto expected =
      whole->score(batch, "a", all_sites(*whole), candidates, kNotCancelled)->kl_sums;
  const auto scores =
      (*tiled)->score(batch, "a", all_sites(*whole), candidates, kNotCancelled)->kl_sums;
  ASSERT_EQ(scores.size(), expected.size());
  for (size_t i = 0; i < scores.size(); ++i) expect_close(scores[i], expected[i], 1e-5, "");
}

// Finite weights whose logits overflow: an error that names where, not a NaN in a sum.
TEST(Scorer, NamesLayerAndCandidateOfValuesThatAreNotFinite) {
  const fs::path directory = fs::temp_directory_path() / fmt::format("scorer_test_{}", ::getpid());
  fs::remove_all(directory);
  fs::copy(kFixtures / "tiny/qwen3_yarn", directory);
  {
    const auto reader = SafetensorsReader::open_file(directory / "model.safetensors").value();
    std::vector<TensorToWrite> tensors;
    std::vector<uint16_t> huge(static_cast<size_t>(reader->find("lm_head.weight")->numel()),
                               0x7F7F);  // the largest finite bfloat16
    for (const auto& [name, view] : reader->tensors()) {
      const bool head = name == "lm_head.weight";
      tensors.push_back(
          {name, view.dtype, view.shape, head ? std::as_bytes(std::span(huge)) : view.bytes});
    }
    ASSERT_TRUE(write_safetensors(directory / "model.safetensors", tensors).ok());
  }
  const auto scorer = Scorer::load(directory, {.threads = 1});
  fs::remove_all(directory);
  ASSERT_TRUE(scorer.ok()) << scorer.error().message;
  const auto scores = (*scorer)->score(tokens_of("qwen3_yarn"), "a", {{.layer = 2}},
                                       parse({"fp8_e4m3/bf16"}), kNotCancelled);
  ASSERT_FALSE(scores.ok());
  EXPECT_NE(scores.error().message.find("layer 2 at fp8_e4m3/bf16"), std::string::npos)
      << scores.error().message;
}

TEST(Scorer, EvaluatesAWholeAssignment) {
  const c10::InferenceMode guard;
  const TokenSet batch = tokens_of("qwen3");
  const Naive naive("qwen3", batch);
  const auto scorer = load("qwen3");
  const auto nvfp4 = parse({"nvfp4"})[0];
  const auto sites = all_sites(*scorer);
  const std::vector<Candidate> uniform(sites.size(), nvfp4);
  const auto joint = scorer->evaluate(batch, "batch", sites, uniform, kNotCancelled);
  ASSERT_TRUE(joint.ok()) << joint.error().message;

  const OneLayer every_layer(-1, nvfp4, 448, 448);
  const at::Tensor log_p = naive.log_probs(ExactKv());
  const at::Tensor log_q = naive.log_probs(every_layer);
  const at::Tensor kl = naive.kl_sums(every_layer);
  const at::Tensor next = naive.ids().roll(-1, 1);
  at::Tensor has_next = naive.mask() & naive.mask().roll(-1, 1);
  has_next.select(1, batch.length - 1).fill_(false);
  const auto nll = [&](const at::Tensor& log_probs) {
    const at::Tensor chosen = log_probs.gather(2, next.unsqueeze(2)).squeeze(2);
    return -(chosen.masked_fill(~has_next, 0.0).sum(1));
  };
  const at::Tensor agrees = ((log_p.argmax(2) == log_q.argmax(2)) & naive.mask()).sum(1);
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const auto at = static_cast<size_t>(s);
    expect_close(joint->kl_sums[at], kl[s].item<double>(), 1e-5, "kl");
    expect_close(joint->nll_sums[at], nll(log_q)[s].item<double>(), 1e-5, "nll");
    expect_close(joint->reference_nll_sums[at], nll(log_p)[s].item<double>(), 1e-5, "nll");
    EXPECT_EQ(joint->next_tokens[at], has_next[s].sum().item<int64_t>());
    EXPECT_EQ(joint->top1_agreements[at], agrees[s].item<int64_t>());
  }

  const std::vector<Candidate> reference(sites.size());
  const auto nothing = scorer->evaluate(batch, "batch", sites, reference, kNotCancelled);
  EXPECT_EQ(nothing->kl_sums, std::vector<double>(3, 0.0));
  EXPECT_EQ(nothing->top1_agreements, nothing->tokens);
}

// K after q/k norm and RoPE, V, over real tokens only.
TEST(Scorer, CalibratesOverRealTokens) {
  const c10::InferenceMode guard;
  const TokenSet batch = tokens_of("qwen3");
  const Naive naive("qwen3", batch);
  class Record final : public KvView {
   public:
    explicit Record(at::Tensor real) : real_(std::move(real)) {}
    SeenKv see(int64_t /*layer*/, const KvPair& exact) const override {
      k.push_back((exact.k * real_).abs().max().item<float>());
      v.push_back((exact.v * real_).abs().max().item<float>());
      return exact;
    }
    mutable std::vector<float> k;
    mutable std::vector<float> v;

   private:
    at::Tensor real_;
  } record(naive.mask().unsqueeze(1).unsqueeze(-1).to(at::kFloat));
  naive.log_probs(record);
  const auto amax = load("qwen3")->calibrate(batch, kNotCancelled);
  ASSERT_TRUE(amax.ok()) << amax.error().message;
  for (size_t i = 0; i < amax->size(); ++i) {
    expect_close((*amax)[i].k, record.k[i], 1e-5, "k");
    expect_close((*amax)[i].v, record.v[i], 1e-5, "v");
  }
}

TEST(Scorer, RefusesTokensBeyondTheVocabulary) {
  TokenSet batch = tokens_of("qwen3");
  batch.input_ids[7] = 96;
  const auto scorer = load("qwen3");
  const auto scores =
      scorer->score(batch, "batch", all_sites(*scorer), parse({"fp8"}), kNotCancelled);
  ASSERT_FALSE(scores.ok());
  EXPECT_EQ(scores.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(scores.error().message.find("96"), std::string::npos) << scores.error().message;
}

TEST(Scorer, RefusesBlocksThatDoNotFitTheHead) {
  const auto scorer = load("llama");  // head_dim 8
  const auto scores =
      scorer->score(tokens_of("llama"), "batch", {{.layer = 0}}, parse({"nvfp4"}), kNotCancelled);
  ASSERT_FALSE(scores.ok());
  EXPECT_EQ(scores.error().code, ErrorCode::kUnsupported);
}

TEST(Scorer, RefusesUnknownLayersAndScales) {
  const auto scorer = load("qwen3");
  const TokenSet batch = tokens_of("qwen3");
  EXPECT_EQ(scorer->score(batch, "a", {{.layer = 3}}, parse({"fp8"}), kNotCancelled).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(scorer
                ->score(batch, "a", {{.layer = 0, .k_amax = NAN}},
                        parse({"fp8_e4m3[scale=calibrated]"}), kNotCancelled)
                .error()
                .code,
            ErrorCode::kInvalidArgument);
}

TEST(Scorer, StopsWhenCancelled) {
  const std::atomic<bool> cancelled{true};
  const auto scorer = load("qwen3");
  const auto scores =
      scorer->score(tokens_of("qwen3"), "a", all_sites(*scorer), parse({"fp8"}), cancelled);
  ASSERT_FALSE(scores.ok());
  EXPECT_EQ(scores.error().code, ErrorCode::kCancelled);
  // Nothing half-made is kept.
  EXPECT_TRUE(
      scorer->score(tokens_of("qwen3"), "a", all_sites(*scorer), parse({"fp8"}), kNotCancelled)
          .ok());
}

TEST(Scorer, RefusesADeviceThatIsNotThere) {
  const auto scorer = Scorer::load(kFixtures / "tiny/qwen3", {.device = "cuda:77"});
  ASSERT_FALSE(scorer.ok());
  EXPECT_EQ(scorer.error().code, ErrorCode::kUnsupported);
}

// Bfloat16 runs score too; the reference at its own candidate is exactly 0 there as well.
TEST(Scorer, ScoresInBfloat16) {
  auto scorer =
      Scorer::load(kFixtures / "tiny/qwen3", {.dtype = ComputeDtype::kBfloat16, .threads = 1});
  ASSERT_TRUE(scorer.ok());
  const auto scores = (*scorer)->score(tokens_of("qwen3"), "a", {{.layer = 1}},
                                       parse({"fp8", "nvfp4", "bf16"}), kNotCancelled);
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_LT(scores->kl_sums[s], scores->kl_sums[3 + s]);  // fp8 is closer than nvfp4
    EXPECT_EQ(scores->kl_sums[6 + s], 0.0);
  }
}

}  // namespace
}  // namespace bitalloc
