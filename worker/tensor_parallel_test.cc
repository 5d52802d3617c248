// Scores of 2, 4 and 6 ranks against those of one process: one model, cut.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/json.h"
#include "common/token_file.h"
#include "worker/ranks_for_test.h"
#include "worker/scorer.h"

namespace bitalloc {
namespace {

namespace fs = std::filesystem;
const fs::path kFixtures = fs::path(BITALLOC_SOURCE_DIR) / "tests/fixtures";
const fs::path kSmall = kFixtures / "small/model";  // 4 heads, 2 KV heads, vocabulary 2048
const std::atomic<bool> kNotCancelled{false};

// The last one is the reference. NVFP4 wants heads of whole blocks.
std::vector<Candidate> candidates(int64_t head_dim = 16) {
  const bool blocks = head_dim % 16 == 0;
  std::vector<Candidate> all;
  for (const char* name : {"fp8_e4m3/fp8_e4m3", blocks ? "nvfp4/nvfp4" : "bf16/fp8_e4m3",
                           blocks ? "fp8_e4m3/nvfp4" : "fp8_e4m3/bf16", "bf16/bf16"}) {
    all.push_back(parse_candidate(name).value());
  }
  return all;
}

std::vector<SiteTask> all_sites(const Scorer& scorer) {
  std::vector<SiteTask> sites;
  for (int i = 0; i < scorer.files().config.num_layers; ++i) sites.push_back({.layer = i});
  return sites;
}

// Bible text of the fixture, turned by some tokens for every further sequence.
TokenSet text(int64_t sequences) {
  const TokenSet read = read_token_file(kFixtures / "small/expected_bf16.safetensors").value();
  const auto count = static_cast<int64_t>(read.input_ids.size());
  TokenSet tokens;
  tokens.sequences = sequences;
  tokens.length = count;
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t i = 0; i < count; ++i) {
      tokens.input_ids.push_back(read.input_ids[static_cast<size_t>((i + 11 * s) % count)]);
      tokens.mask.push_back(1);
    }
  }
  return tokens;
}

struct Everything {
  UnitScores scores;
  JointScores joint;
  std::vector<KvAmax> amax;
  int64_t weight_bytes_read = 0;
};

Everything everything(const fs::path& model, const TokenSet& batch, const ScorerOptions& options) {
  Everything all;
  auto scorer = Scorer::load(model, options);
  EXPECT_TRUE(scorer.ok()) << scorer.error().message;
  const auto sites = all_sites(**scorer);
  const auto some = candidates((*scorer)->files().config.head_dim);
  auto scores = (*scorer)->score(batch, "batch", sites, some, kNotCancelled);
  EXPECT_TRUE(scores.ok()) << scores.error().message;
  const std::vector<Candidate> uniform(sites.size(), some[1]);
  auto joint = (*scorer)->evaluate(batch, "batch", sites, uniform, kNotCancelled);
  EXPECT_TRUE(joint.ok()) << joint.error().message;
  auto amax = (*scorer)->calibrate(batch, kNotCancelled);
  EXPECT_TRUE(amax.ok()) << amax.error().message;
  return {*scores, *joint, *amax, (*scorer)->weight_bytes_read()};
}

std::vector<Everything> on_each_rank(int size, const fs::path& model, const TokenSet& batch,
                                     ScorerOptions options) {
  std::vector<Everything> ranks(static_cast<size_t>(size));
  options.threads = 1;
  on_ranks(size, [&](Collective& group) {
    ScorerOptions own = options;
    own.group = &group;
    ranks[static_cast<size_t>(group.rank())] = everything(model, batch, own);
  });
  return ranks;
}

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

// Scores of a trial over the whole batch: [sites × candidates].
std::vector<double> by_trial(const UnitScores& scores) {
  std::vector<double> sums;
  const size_t sequences = scores.tokens.size();
  for (size_t at = 0; at < scores.kl_sums.size(); at += sequences) {
    sums.push_back(total({scores.kl_sums.begin() + static_cast<std::ptrdiff_t>(at),
                          scores.kl_sums.begin() + static_cast<std::ptrdiff_t>(at + sequences)}));
  }
  return sums;
}

// The largest |ours − expected| / expected; NaN when any is.
double worst_difference(const std::vector<double>& ours, const std::vector<double>& expected) {
  EXPECT_EQ(ours.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double difference =
        expected[i] == 0 ? std::abs(ours[i]) : std::abs(ours[i] - expected[i]) / expected[i];
    if (!(difference <= worst)) worst = difference;
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

void expect_the_same(const Everything& ours, const Everything& one, double tolerance,
                     const std::string& what) {
  double worst = 0;
  const auto expect = [&](const char* which, double difference) {
    EXPECT_FALSE(!(difference <= tolerance)) << what << ", " << which << ": " << difference;
    worst = std::max(worst, difference);
  };
  expect("scores", worst_difference(by_trial(ours.scores), by_trial(one.scores)));
  EXPECT_EQ(ours.scores.tokens, one.scores.tokens);
  expect("kl of an assignment",
         worst_difference({total(ours.joint.kl_sums)}, {total(one.joint.kl_sums)}));
  expect("nll", worst_difference({total(ours.joint.nll_sums)}, {total(one.joint.nll_sums)}));
  expect("nll of the reference", worst_difference({total(ours.joint.reference_nll_sums)},
                                                  {total(one.joint.reference_nll_sums)}));
  EXPECT_EQ(ours.joint.next_tokens, one.joint.next_tokens);
  for (size_t i = 0; i < one.amax.size(); ++i) {
    expect("amax",
           worst_difference({ours.amax[i].k, ours.amax[i].v}, {one.amax[i].k, one.amax[i].v}));
  }
  fmt::print("{}: at most {:.1e} from one process\n", what, worst);
}

int64_t agreements(const Everything& all) {
  int64_t sum = 0;
  for (const int64_t count : all.joint.top1_agreements) sum += count;
  return sum;
}

void expect_all_ranks_alike(const std::vector<Everything>& ranks) {
  for (const Everything& rank : ranks) {
    EXPECT_EQ(rank.scores.kl_sums, ranks[0].scores.kl_sums);
    EXPECT_EQ(rank.joint.kl_sums, ranks[0].joint.kl_sums);
    EXPECT_EQ(rank.joint.nll_sums, ranks[0].joint.nll_sums);
    EXPECT_EQ(rank.joint.top1_agreements, ranks[0].joint.top1_agreements);
  }
}

TEST(TensorParallel, SmallModelInFloat32) {
  const TokenSet batch = text(4);
  const Everything one = everything(kSmall, batch, {.threads = 1});
  for (const int size : {2, 4}) {
    const auto ranks = on_each_rank(size, kSmall, batch, {});
    expect_all_ranks_alike(ranks);
    expect_the_same(ranks[0], one, 1e-5, fmt::format("{} ranks", size));
    EXPECT_EQ(agreements(ranks[0]), agreements(one));
  }
}

TEST(TensorParallel, SmallModelInBfloat16) {
  const TokenSet batch = text(1);
  const ScorerOptions options = {.dtype = ComputeDtype::kBfloat16, .threads = 1};
  const Everything one = everything(kSmall, batch, options);
  for (const int size : {2, 4}) {
    const auto ranks = on_each_rank(size, kSmall, batch, options);
    expect_all_ranks_alike(ranks);
    expect_the_same(ranks[0], one, 1e-3, fmt::format("{} ranks", size));
  }
}

// 4 or 6 heads, 2 KV heads: with a rank for every head two or three ranks share a KV head, and six
// cut an MLP of 80 unevenly. The batch has padding on either side.
class TinyFamilies : public testing::TestWithParam<const char*> {};

TEST_P(TinyFamilies, OnTwoRanksAndOneForEveryHead) {
  const fs::path model = kFixtures / "tiny" / GetParam();
  const TokenSet batch = read_token_file(model / "expected.safetensors").value();
  const Everything one = everything(model, batch, {.threads = 1});
  for (const int size : {2, static_cast<int>(load_model_config(model)->num_heads)}) {
    const auto ranks = on_each_rank(size, model, batch, {});
    expect_all_ranks_alike(ranks);
    expect_the_same(ranks[0], one, 1e-5, fmt::format("{} ranks", size));
    EXPECT_EQ(ranks[0].joint.top1_agreements, one.joint.top1_agreements);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TinyFamilies,
                         testing::Values("llama_linear", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

// The model with its last token left out: 95 do not divide by 2 or 6.
fs::path with_an_odd_vocabulary(const char* name) {
  const fs::path from = kFixtures / "tiny" / name;
  const fs::path directory = fs::temp_directory_path() / fmt::format("tp_test_{}", ::getpid());
  fs::remove_all(directory);
  fs::create_directory(directory);
  std::ifstream file(from / "config.json");
  Json config = Json::parse(file);
  const auto vocab = config["vocab_size"].get<int64_t>();
  config["vocab_size"] = vocab - 1;
  std::ofstream(directory / "config.json") << config.dump();
  const auto reader = SafetensorsReader::open_model(from).value();
  std::vector<TensorToWrite> tensors;
  for (const auto& [tensor_name, view] : reader->tensors()) {
    TensorToWrite tensor{tensor_name, view.dtype, view.shape, view.bytes};
    if (tensor_name == "model.embed_tokens.weight" || tensor_name == "lm_head.weight") {
      tensor.shape.front() = vocab - 1;
      tensor.bytes = view.bytes.first(view.bytes.size() / vocab * (vocab - 1));
    }
    tensors.push_back(tensor);
  }
  EXPECT_TRUE(write_safetensors(directory / "model.safetensors", tensors).ok());
  return directory;
}

TEST(TensorParallel, VocabularyThatDoesNotDivide) {
  const fs::path model = with_an_odd_vocabulary("qwen3");
  TokenSet batch = read_token_file(kFixtures / "tiny/qwen3/expected.safetensors").value();
  for (int32_t& id : batch.input_ids) id %= 95;
  const Everything one = everything(model, batch, {.threads = 1});
  for (const int size : {2, 6}) {
    const auto ranks = on_each_rank(size, model, batch, {});
    expect_all_ranks_alike(ranks);
    expect_the_same(ranks[0], one, 1e-5, fmt::format("{} ranks", size));
    EXPECT_EQ(ranks[0].joint.top1_agreements, one.joint.top1_agreements);
  }
  fs::remove_all(model);
}

// Everything but the norms is cut; KV heads are copied where they are fewer than ranks.
TEST(TensorParallel, ARankReadsItsSliceOnly) {
  const ModelConfig config = load_model_config(kSmall).value();
  const int64_t norms = 2 * (config.num_layers * (2 * 128 + 2 * 32) + 128);
  const int64_t kv = 2 * config.num_layers * 2 * (2 * 32 * 128);
  const int64_t whole = 2 * (2048 * 128 + 12 * (2 * 128 * 128 + 3 * 384 * 128)) + kv + norms;
  const TokenSet batch = text(1);
  EXPECT_EQ(everything(kSmall, batch, {.threads = 1}).weight_bytes_read, whole);
  for (const auto& rank : on_each_rank(2, kSmall, batch, {})) {
    EXPECT_EQ(rank.weight_bytes_read, (whole - norms) / 2 + norms);
  }
  for (const auto& rank : on_each_rank(4, kSmall, batch, {})) {
    EXPECT_EQ(rank.weight_bytes_read, (whole - norms - kv) / 4 + kv / 2 + norms);
  }
}

TEST(TensorParallel, RefusesHeadsThatDoNotDivide) {
  on_ranks(3, [](Collective& group) {
    const auto scorer = Scorer::load(kSmall, {.threads = 1, .group = &group});
    ASSERT_FALSE(scorer.ok());
    EXPECT_EQ(scorer.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(scorer.error().message.find("4 attention heads and 2 KV heads"), std::string::npos)
        << scorer.error().message;
  });
}

// Only rank 0 hears of it; the others must neither go on alone nor be left waiting.
TEST(TensorParallel, ACancellationOfOneRankStopsAll) {
  const TokenSet batch = text(2);
  on_ranks(2, [&](Collective& group) {
    auto scorer = Scorer::load(kSmall, {.threads = 1, .group = &group});
    ASSERT_TRUE(scorer.ok()) << scorer.error().message;
    const auto sites = all_sites(**scorer);
    std::atomic<bool> cancel{false};
    std::jthread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (group.rank() == 0) cancel = true;
    });
    const auto scores = (*scorer)->score(batch, "a", sites, candidates(), cancel);
    ASSERT_FALSE(scores.ok()) << "the machine is so fast that there was nothing to cancel";
    EXPECT_EQ(scores.error().code, ErrorCode::kCancelled);
    later.join();
    EXPECT_TRUE((*scorer)->score(batch, "a", {{.layer = 11}}, candidates(), kNotCancelled).ok());
  });
}

// A rank that ends in the middle of a unit: the others' unit fails, to be tried again.
TEST(TensorParallel, ALostRankFailsTheUnit) {
  const TokenSet batch = text(2);
  on_ranks(2, [&](Collective& group) {
    auto scorer = Scorer::load(kSmall, {.threads = 1, .group = &group});
    ASSERT_TRUE(scorer.ok()) << scorer.error().message;
    if (group.rank() == 1) return;
    const auto scores =
        (*scorer)->score(batch, "a", all_sites(**scorer), candidates(), kNotCancelled);
    ASSERT_FALSE(scores.ok());
    EXPECT_EQ(scores.error().code, ErrorCode::kUnavailable);
  });
}

}  // namespace
}  // namespace bitalloc
