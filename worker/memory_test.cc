// Memory for real: every byte of LibTorch's CPU allocator is counted, and can be refused.
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <random>

#include "common/token_file.h"
#include "worker/models/families.h"
#include "worker/reference.h"
#include "worker/scorer.h"

namespace bitalloc {
namespace {
namespace fs = std::filesystem;

const fs::path kFixtures = fs::path(BITALLOC_SOURCE_DIR) / "tests/fixtures";
const std::atomic<bool> kNotCancelled{false};
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kNoCap = std::numeric_limits<int64_t>::max();

// Stands in for LibTorch's CPU allocator: counts, and fails as memory does beyond a cap.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto size = static_cast<int64_t>(bytes);
    const int64_t now = now_ += size;
    if (now > cap_) {
      now_ -= size;
      ++refused_;
      throw std::bad_alloc();
    }
    for (int64_t peak = peak_; now > peak && !peak_.compare_exchange_weak(peak, now);) {
    }
    auto* const base = static_cast<char*>(std::aligned_alloc(kAlign, bytes_with_header(bytes)));
    new (base) Header{this, size};
    void* const data = base + kAlign;
    return {data, data, &release, at::kCPU};
  }
  // LibTorch's raw allocations (oneDNN packs bfloat16 weights with them) want context == data.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }
  int64_t refused() const { return refused_; }
  void start_again(int64_t cap = kNoCap) {
    peak_ = now_.load();
    cap_ = cap;
    refused_ = 0;
  }

 private:
  static constexpr size_t kAlign = 64;
  struct Header {  // in front of the data
    CountingAllocator* owner;
    int64_t bytes;
  };
  static_assert(sizeof(Header) <= kAlign);

  static size_t bytes_with_header(size_t bytes) {
    return kAlign + (bytes + kAlign - 1) / kAlign * kAlign;
  }
  static void release(void* data) {
    char* const base = static_cast<char*>(data) - kAlign;
    const auto* header = reinterpret_cast<const Header*>(base);
    header->owner->now_ -= header->bytes;
    std::free(base);
  }

  std::atomic<int64_t> now_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> cap_{kNoCap};
  std::atomic<int64_t> refused_{0};
};

CountingAllocator& allocator() {
  static auto* const counting = new CountingAllocator;  // tensors of other statics may outlive main
  static const bool installed = [] {
    c10::SetCPUAllocator(counting, /*priority=*/100);
    return true;
  }();
  static_cast<void>(installed);
  return *counting;
}

std::vector<Candidate> parse(std::initializer_list<const char*> names) {
  std::vector<Candidate> candidates;
  for (const char* name : names) candidates.push_back(parse_candidate(name).value());
  return candidates;
}

TokenSet random_tokens(int64_t sequences, int64_t length, int64_t vocab_size) {
  TokenSet tokens;
  tokens.sequences = sequences;
  tokens.length = length;
  std::mt19937 random(7);
  for (int64_t i = 0; i < sequences * length; ++i) {
    tokens.input_ids.push_back(static_cast<int32_t>(random() % vocab_size));
    tokens.mask.push_back(1);
  }
  return tokens;
}

std::unique_ptr<Scorer> load(const fs::path& model, const ScorerOptions& options) {
  auto scorer = Scorer::load(model, options);
  EXPECT_TRUE(scorer.ok()) << scorer.error().message;
  return std::move(scorer).value();
}

std::vector<SiteTask> sites_of(const Scorer& scorer) {
  std::vector<SiteTask> sites;
  for (int i = 0; i < scorer.files().config.num_layers; ++i) sites.push_back({.layer = i});
  return sites;
}

// First and last layer, neighbours, and one between: in no order.
std::vector<SiteTask> some_sites() {
  return {{.layer = 7}, {.layer = 0}, {.layer = 8}, {.layer = 11}, {.layer = 4}};
}

const std::vector<Candidate>& candidates() {
  static const auto all = parse({"fp8_e4m3/fp8_e4m3", "bf16/bf16", "nvfp4/bf16"});
  return all;
}

Result<UnitScores> score(Scorer& scorer, const TokenSet& batch) {
  return scorer.score(batch, "batch", some_sites(), candidates(), kNotCancelled);
}

const fs::path kSmall = kFixtures / "small/model";  // 12 layers, hidden 128
const fs::path kTiny = kFixtures / "tiny/qwen3";    // 3 layers, hidden 48

// Two tokens sets: all of one length, and ragged ones with padding on the left and holes.
std::vector<TokenSet> batches(int64_t vocab_size) {
  TokenSet even = random_tokens(6, 96, vocab_size);
  TokenSet ragged = random_tokens(5, 200, vocab_size);
  for (int64_t s = 0; s < ragged.sequences; ++s) {
    for (int64_t i = 0; i < ragged.length; ++i) {
      const bool padding = s == 4 ? i < 50 || i == 99 : i >= 40 * (s + 1);
      if (padding) ragged.mask[static_cast<size_t>(s * ragged.length + i)] = 0;
    }
  }
  return {even, ragged};
}

// Memory decides what is kept and how a unit is cut, never a bit of a score.
void expect_scores_of_unlimited_memory(const TokenSet& batch, int threads) {
  const auto run = [&](const MemoryOptions& memory, UnitPlan& plan) {
    const auto scorer = load(kTiny, {.threads = threads, .memory = memory});
    const auto scores =
        scorer->score(batch, "batch", sites_of(*scorer), candidates(), kNotCancelled);
    EXPECT_TRUE(scores.ok()) << scores.error().message;
    plan = scorer->last_plan();
    return scores->kl_sums;
  };
  UnitPlan whole;
  UnitPlan plan;
  const std::vector<double> expected = run({}, whole);
  ASSERT_TRUE(whole.keep.all_on_device());
  EXPECT_EQ(whole.sites, 3);
  for (const int64_t kept :
       {int64_t{0}, whole.keep.device_bytes / 9, whole.keep.device_bytes - 1}) {
    EXPECT_EQ(run({.activation_bytes = kept}, plan), expected) << kept << " bytes kept";
    EXPECT_LE(plan.keep.device_bytes, kept);
  }
  for (const int64_t eighths : {6, 3, 1, 0}) {
    const int64_t limit =
        whole.smallest_bytes + (whole.peak_bytes - whole.smallest_bytes) * eighths / 8;
    EXPECT_EQ(run({.limit_bytes = limit}, plan), expected) << "limit " << limit;
    EXPECT_LE(plan.peak_bytes, limit);
  }
  EXPECT_EQ(plan.sites, 1);
  EXPECT_LT(plan.sequences, batch.sequences);
}

TEST(Memory, ScoresAreThoseOfUnlimitedMemory) {
  allocator();
  for (const TokenSet& batch : batches(96)) {
    for (const int threads : {1, 2}) expect_scores_of_unlimited_memory(batch, threads);
  }
}

TEST(Memory, OneUnitAfterAnotherOnWhatIsKept) {
  const TokenSet batch = batches(96)[0];
  const auto unlimited = load(kSmall, {.threads = 2});
  const auto expected = score(*unlimited, batch);
  ASSERT_TRUE(expected.ok());
  const auto scorer = load(kSmall, {.threads = 2, .memory = {.activation_bytes = kMiB}});
  const auto all = some_sites();
  std::vector<double> sums;
  for (const std::vector<SiteTask>& sites :
       {std::vector(all.begin(), all.begin() + 3), std::vector(all.begin() + 3, all.end())}) {
    const auto part = scorer->score(batch, "batch", sites, candidates(), kNotCancelled);
    ASSERT_TRUE(part.ok()) << part.error().message;
    sums.insert(sums.end(), part->kl_sums.begin(), part->kl_sums.end());
  }
  EXPECT_EQ(sums, expected->kl_sums);
}

// What the plan says is an upper bound, and no more than kLoose above what is really handed out.
constexpr double kLoose = 1.6;

UnitPlan expect_planned_peak(const fs::path& model, const TokenSet& batch,
                             const ScorerOptions& options, const std::string& what) {
  const int64_t before = allocator().now();
  const auto scorer = load(model, options);
  allocator().start_again();
  const auto scores = score(*scorer, batch);
  EXPECT_TRUE(scores.ok()) << what << ": " << (scores.ok() ? "" : scores.error().message);
  const auto measured = static_cast<double>(allocator().peak() - before);
  const auto planned = static_cast<double>(scorer->last_plan().peak_bytes);
  fmt::print(
      "{}: planned {:.2f} MiB, measured {:.2f} MiB, {} sequences × {} candidates × {} sites\n",
      what, planned / kMiB, measured / kMiB, scorer->last_plan().sequences,
      scorer->last_plan().candidates, scorer->last_plan().sites);
  EXPECT_FALSE(!(measured <= planned)) << what;
  EXPECT_FALSE(!(measured * kLoose >= planned)) << what;
  return scorer->last_plan();
}

TEST(Memory, MeasuredPeakIsWhatWasPlanned) {
  const TokenSet longer = random_tokens(2, 512, 1000);
  TokenSet holes = longer;
  for (size_t i = 0; i < holes.mask.size(); i += 100) holes.mask[i] = 0;
  for (const ComputeDtype dtype : {ComputeDtype::kFloat32, ComputeDtype::kBfloat16}) {
    for (const TokenSet& batch : {longer, holes}) {
      const std::string name =
          fmt::format("{}, {}", dtype == ComputeDtype::kFloat32 ? "f32" : "bf16",
                      batch.mask[0] == 1 ? "plain" : "holes");
      const ScorerOptions options = {.dtype = dtype, .threads = 2};
      const UnitPlan whole = expect_planned_peak(kSmall, batch, options, name + ", whole");
      for (const double share : {0.5, 0.0}) {
        ScorerOptions limited = options;
        limited.memory.limit_bytes =
            whole.smallest_bytes +
            static_cast<int64_t>(share *
                                 static_cast<double>(whole.peak_bytes - whole.smallest_bytes));
        expect_planned_peak(kSmall, batch, limited, fmt::format("{}, {} of it", name, share));
      }
    }
  }
}

// The allocator has less than the plan believes: what is kept is freed, the unit is halved.
TEST(Memory, RunningOutInSpiteOfThePlan) {
  const TokenSet batch = random_tokens(3, 300, 1000);
  const auto unlimited = load(kSmall, {.threads = 2});
  const auto expected = score(*unlimited, batch);
  ASSERT_TRUE(expected.ok());
  const UnitPlan whole = unlimited->last_plan();
  const auto scorer = load(kSmall, {.threads = 2});
  const int64_t rest = allocator().now() - scorer->network().weight_bytes;
  for (const int64_t cap :
       {whole.peak_bytes * 2 / 3, (whole.peak_bytes + 2 * whole.smallest_bytes) / 3,
        whole.smallest_bytes}) {
    scorer->forget_batch();
    allocator().start_again(rest + cap);
    const auto scores = score(*scorer, batch);
    const int64_t refused = allocator().refused();
    allocator().start_again();
    ASSERT_TRUE(scores.ok()) << cap << ": " << scores.error().message;
    EXPECT_GT(refused, 0) << "the plan was never wrong: this test tests nothing";
    EXPECT_EQ(scores->kl_sums, expected->kl_sums) << cap;
  }
  // Not even the smallest part: an error with the bytes it takes, and the scorer lives on.
  scorer->forget_batch();
  allocator().start_again(rest + scorer->network().weight_bytes + kMiB / 8);
  const auto failed = score(*scorer, batch);
  allocator().start_again();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(failed.error().message.find(fmt::format("{}", whole.smallest_bytes)), std::string::npos)
      << failed.error().message;
  EXPECT_EQ(score(*scorer, batch)->kl_sums, expected->kl_sums);
}

TEST(Memory, TooLittleForOneSequenceAndCandidate) {
  const TokenSet batch = random_tokens(3, 300, 1000);
  const auto unlimited = load(kSmall, {.threads = 1});
  ASSERT_TRUE(score(*unlimited, batch).ok());
  const int64_t needed = unlimited->last_plan().smallest_bytes;
  const auto enough = load(kSmall, {.threads = 1, .memory = {.limit_bytes = needed}});
  EXPECT_TRUE(score(*enough, batch).ok());
  const auto short_by_one = load(kSmall, {.threads = 1, .memory = {.limit_bytes = needed - 1}});
  const auto scores = score(*short_by_one, batch);
  ASSERT_FALSE(scores.ok());
  EXPECT_EQ(scores.error().code, ErrorCode::kResourceExhausted);
  for (const int64_t number : {needed, needed - 1}) {
    EXPECT_NE(scores.error().message.find(fmt::format("({} bytes)", number)), std::string::npos)
        << scores.error().message;
  }
}

// 2 632 560 parameters in float32 would not fit in 10 MB.
TEST(Memory, WeightsThatDoNotFitAreNotLoaded) {
  const int64_t weights = 4 * load(kSmall, {.threads = 1})->files().parameters;
  const int64_t before = allocator().now();
  allocator().start_again();
  const auto scorer = Scorer::load(kSmall, {.threads = 1, .memory = {.limit_bytes = weights - 1}});
  ASSERT_FALSE(scorer.ok());
  EXPECT_EQ(scorer.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(scorer.error().message.find("weights need"), std::string::npos);
  EXPECT_NE(scorer.error().message.find(fmt::format("({} bytes)", weights - 1)), std::string::npos)
      << scorer.error().message;
  EXPECT_LT(allocator().peak() - before, weights / 10);
}

// Loading takes what the plan says, no more.
TEST(Memory, LoadingFitsWhatItSays) {
  const int64_t before = allocator().now();
  allocator().start_again();
  const auto refused = Scorer::load(kSmall, {.threads = 1, .memory = {.limit_bytes = 1}});
  ASSERT_FALSE(refused.ok());
  const std::string& message = refused.error().message;
  const int64_t needed = std::stoll(message.substr(message.find('(') + 1));
  const auto scorer = load(kSmall, {.threads = 1, .memory = {.limit_bytes = needed}});
  EXPECT_LE(allocator().peak() - before, needed);
  EXPECT_EQ(allocator().now() - before, scorer->network().weight_bytes);
}

TEST(Memory, ValidationAndCalibrationInParts) {
  const TokenSet batch = batches(96)[1];
  const auto unlimited = load(kSmall, {.threads = 2});
  const auto sites = sites_of(*unlimited);
  const std::vector<Candidate> assignment(sites.size(), candidates()[1]);
  const auto expected = unlimited->evaluate(batch, "b", sites, assignment, kNotCancelled);
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  const int64_t smallest = unlimited->last_plan().smallest_bytes;
  const auto scorer = load(kSmall, {.threads = 2, .memory = {.limit_bytes = smallest}});
  const auto joint = scorer->evaluate(batch, "b", sites, assignment, kNotCancelled);
  ASSERT_TRUE(joint.ok()) << joint.error().message;
  EXPECT_EQ(scorer->last_plan().sequences, 1);
  EXPECT_EQ(joint->kl_sums, expected->kl_sums);
  EXPECT_EQ(joint->nll_sums, expected->nll_sums);
  EXPECT_EQ(joint->reference_nll_sums, expected->reference_nll_sums);
  EXPECT_EQ(joint->tokens, expected->tokens);
  EXPECT_EQ(joint->next_tokens, expected->next_tokens);
  EXPECT_EQ(joint->top1_agreements, expected->top1_agreements);
  const auto whole = unlimited->calibrate(batch, kNotCancelled);
  const auto parts = scorer->calibrate(batch, kNotCancelled);
  ASSERT_TRUE(whole.ok() && parts.ok());
  for (size_t i = 0; i < whole->size(); ++i) {
    EXPECT_EQ((*parts)[i].k, (*whole)[i].k);
    EXPECT_EQ((*parts)[i].v, (*whole)[i].v);
  }
}

// Both tiers and none give what the pass computed, to the bit, in any order of layers.
TEST(ActivationStore, GivesBackWhatThePassComputed) {
  const c10::InferenceMode guard;
  const auto scorer = load(kSmall, {.threads = 2});
  const ModelFiles& files = scorer->files();
  const Decoder model = load_decoder(files, at::kCPU, at::kFloat);
  const TokenSet batch = batches(files.config.vocab_size)[1];
  const auto hidden = 1000 * files.config.hidden_size * 4;  // 5 × 200 tokens
  const auto run = [&](int64_t device, int64_t host) {
    const KeepPlan keep = plan_activations(12, hidden, 2 * hidden, device, host);
    return run_reference(model, batch, {"b", keep, batch.sequences}, kNotCancelled).value();
  };
  const Reference all = run(100 * hidden, 0);
  ASSERT_TRUE(all.store.keep().all_on_device());
  for (const auto& [device, host] :
       {std::pair{int64_t{0}, int64_t{0}}, {3 * hidden, 2 * hidden}, {13 * hidden, 8 * hidden}}) {
    const Reference some = run(device, host);
    std::vector<Segment> segments(some.chunks.size());
    for (const std::vector<size_t>& layers : {std::vector<size_t>{0, 1}, {4, 5, 9}, {11}}) {
      ASSERT_TRUE(fetch_segments(model, some, layers, kNotCancelled, segments).ok());
      for (size_t chunk = 0; chunk < some.chunks.size(); ++chunk) {
        for (size_t i = 0; i < layers.size(); ++i) {
          const Activations& got = segments[chunk].activations[i];
          const Qkv expected = all.store.qkv(chunk, layers[i], at::kCPU);
          EXPECT_TRUE(at::equal(got.qkv.q, expected.q));
          EXPECT_TRUE(at::equal(got.qkv.kv.k, expected.kv.k));
          EXPECT_TRUE(at::equal(got.qkv.kv.v, expected.kv.v));
          if (layers[i] == 0) continue;
          EXPECT_TRUE(at::equal(got.hidden, all.store.hidden(chunk, layers[i], at::kCPU)));
        }
      }
    }
  }
}

// A llama of two layers with random weights: only its shape matters.
fs::path random_model(const std::string& name, int64_t vocab_size) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("{}_{}", name, ::getpid());
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
          "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6,
          "max_position_embeddings": 8192, "vocab_size": {}, "tie_word_embeddings": true}})",
      vocab_size);
  const ModelConfig config = load_model_config(folder).value();
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 0.1F);
  std::vector<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    values.emplace_back(static_cast<size_t>(count));
    for (float& value : values.back()) value = normal(random);
    tensors.push_back(
        {tensor.name, Dtype::kF32, tensor.shape, std::as_bytes(std::span(values.back()))});
  }
  EXPECT_TRUE(write_safetensors(folder / "model.safetensors", tensors).ok());
  return folder;
}

// 30 000 words × 2048 tokens of float32 logits would be 245 MB; the output layer and its tiles are
// all that may grow with the vocabulary, and no part with vocabulary × context.
TEST(Memory, DoesNotGrowWithVocabularyTimesContext) {
  const auto peak_beside_weights = [](const fs::path& model, int64_t length) {
    const ScorerOptions options = {.threads = 1, .tile_bytes = kMiB};
    const auto scorer = load(model, options);
    const int64_t before = allocator().now();
    allocator().start_again();
    const auto scores = scorer->score(random_tokens(1, length, 100), "b", sites_of(*scorer),
                                      parse({"fp8_e4m3/fp8_e4m3"}), kNotCancelled);
    EXPECT_TRUE(scores.ok()) << scores.error().message;
    return allocator().peak() - before;
  };
  const fs::path narrow = random_model("narrow", 1000);
  const fs::path wide = random_model("wide", 30000);
  const int64_t narrow_short = peak_beside_weights(narrow, 512);
  const int64_t narrow_long = peak_beside_weights(narrow, 2048);
  const int64_t wide_short = peak_beside_weights(wide, 512);
  const int64_t wide_long = peak_beside_weights(wide, 2048);
  fs::remove_all(narrow);
  fs::remove_all(wide);
  const int64_t product = int64_t{30000} * 2048 * 4;
  EXPECT_LT(wide_long, product / 10);
  // Two tiles of 1 MiB, whatever the vocabulary.
  EXPECT_LT(wide_short - narrow_short, 3 * kMiB);
  EXPECT_LT(wide_long - narrow_long, 3 * kMiB);
  fmt::print("1000 words: {:.2f}, {:.2f} MiB; 30000 words: {:.2f}, {:.2f} MiB\n",
             static_cast<double>(narrow_short) / kMiB, static_cast<double>(narrow_long) / kMiB,
             static_cast<double>(wide_short) / kMiB, static_cast<double>(wide_long) / kMiB);
}

}  // namespace
}  // namespace bitalloc
