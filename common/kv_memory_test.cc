// Bytes of caches whose sizes are published or that a few multiplications give.
#include "common/kv_memory.h"

#include <gtest/gtest.h>

namespace bitalloc {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Llama 3.1 8B: 32 layers, 8 KV heads of 128. Its cache is known to take 128 KiB a token in bf16.
SearchSpec llama_8b() {
  SearchSpec spec;
  spec.model.num_layers = 32;
  spec.model.num_kv_heads = 8;
  spec.model.head_dim = 128;
  for (int layer = 0; layer < 32; ++layer) spec.sites.push_back({"", layer, 1024, 1024});
  return spec;
}

std::vector<Candidate> uniform(const SearchSpec& spec, const std::string& candidate) {
  return std::vector<Candidate>(spec.sites.size(), *parse_candidate(candidate));
}

TEST(KvMemory, LlamaOf8BillionTakes128KiBAToken) {
  const SearchSpec spec = llama_8b();
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "bf16"), {.context = 16}), 16 * 128 * 1024);
  // 16 sequences of 32,768 tokens: 64 GiB; half in fp8; 4.5/16 of it in nvfp4.
  const KvLoad load{.context = 32'768, .sequences = 16};
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "bf16"), load), 64 * kGiB);
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "fp8"), load), 32 * kGiB);
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "nvfp4"), load), 18 * kGiB);
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "fp8/nvfp4"), load), 25 * kGiB);
}

// KIVI on every one of 8 heads and 32 layers; a stored row of 128 takes 3 bits an element (48
// bytes), an exact one 256 bytes. Values keep 128 exact. Keys are stored 128 at a time: 127 are
// exact just before, 100 at most in a sequence of 100. 300 tokens are 304 in blocks of 16.
TEST(KvMemory, ExactTokensTakeTheirBytes) {
  const SearchSpec spec = llama_8b();
  const int64_t rows = 32 * 8;
  const auto kivi = [&](int64_t context) {
    return assignment_kv_bytes(spec, uniform(spec, "kivi2"), {.context = context});
  };
  EXPECT_EQ(kivi(300), rows * (2 * 304 * 48 + (127 + 128) * (256 - 48)));
  EXPECT_EQ(kivi(256), rows * (2 * 256 * 48 + (127 + 128) * (256 - 48)));
  EXPECT_EQ(kivi(100), rows * (2 * 112 * 48 + (100 + 100) * (256 - 48)));
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "nvfp4[see=window,window=64]"),
                                {.context = 320, .sequences = 3}),
            3 * rows * 2 * (320 * 72 + 64 * (256 - 72)));
}

// A cache of KIVI's takes less at 256 tokens than at 255: to get there, it must hold those.
TEST(KvMemory, NoLongerContextTakesLess) {
  const SearchSpec spec = llama_8b();
  for (const char* name :
       {"kivi2", "nvfp4[see=window,window=40]", "int4[see=after_prefill,prefill=50,window=32]"}) {
    int64_t last = 0;
    for (int64_t context = 1; context <= 400; ++context) {
      const int64_t bytes =
          assignment_kv_bytes(spec, uniform(spec, name), {.context = context, .block_tokens = 1});
      EXPECT_GE(bytes, last) << name << " at " << context;
      last = bytes;
    }
  }
  const KvLoad at_256{.context = 256};
  const std::vector<Candidate> kivi = uniform(spec, "kivi2");
  const KvBudget budget{assignment_kv_bytes(spec, kivi, at_256), at_256};
  EXPECT_EQ(longest_context(spec, kivi, budget), 256);
}

// Layers that keep the newest 512 tokens, at 1000: KIVI's keys were stored 128 at a time from the
// sequence's first token on, so that 104 are exact now and 127 were before.
TEST(KvMemory, ExactTokensOfASlidingWindow) {
  SearchSpec spec = llama_8b();
  spec.model.sliding_window.assign(32, 512);
  const int64_t stored = 32 * 8 * 2 * 33 * 16 * 48;  // 33 blocks of 16
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "kivi2"), {.context = 1000}),
            stored + 32 * 8 * (127 + 128) * (256 - 48));
  spec.model.sliding_window.assign(32, 20);  // all of them are exact
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "kivi2"), {.context = 1000}),
            32 * 8 * 2 * (3 * 16 * 48 + 20 * (256 - 48)));
}

// 8 billion parameters of 2 bytes on two ranks leave 4 of 12 GB of each.
TEST(KvMemory, WeightsLeaveTheRestOfAGpu) {
  SearchSpec spec = llama_8b();
  const KvBudget asked{0, {.context = 100, .tensor_parallel = 2}, 12'000'000'000};
  const auto unknown = cache_budget(asked, spec);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
  spec.model.parameters = 8'000'000'000;
  EXPECT_EQ(cache_budget(asked, spec)->bytes, 4'000'000'000);
  KvBudget one = asked;
  one.load.tensor_parallel = 1;
  EXPECT_EQ(cache_budget(one, spec).error().code, ErrorCode::kInfeasible);
}

TEST(KvMemory, RanksShareTheHeadsAndThenStoreThemAgain) {
  const SearchSpec spec = llama_8b();
  const auto bytes = [&](int64_t ranks) {
    const KvLoad load{.context = 32'768, .sequences = 16, .tensor_parallel = ranks};
    return assignment_kv_bytes(spec, uniform(spec, "bf16"), load);
  };
  EXPECT_EQ(bytes(2), 32 * kGiB);
  EXPECT_EQ(bytes(8), 8 * kGiB);
  EXPECT_EQ(bytes(16), 8 * kGiB);  // one head a rank is the least
}

TEST(KvMemory, SequencesHoldWholeBlocks) {
  EXPECT_EQ(kv_tokens({.context = 1}, 0), 16);
  EXPECT_EQ(kv_tokens({.context = 16}, 0), 16);
  EXPECT_EQ(kv_tokens({.context = 17, .sequences = 3}, 0), 96);
  EXPECT_EQ(kv_tokens({.context = 100, .block_tokens = 64}, 0), 128);
}

// 33 tokens may begin at the last place of a block: 1 + 16 + 16 are three blocks, 34 would be four.
TEST(KvMemory, AWindowTouchesOneBlockMore) {
  EXPECT_EQ(kv_tokens({.context = 1'000}, 33), 48);
  EXPECT_EQ(kv_tokens({.context = 1'000}, 34), 64);
  EXPECT_EQ(kv_tokens({.context = 20}, 4'096), 32);
  EXPECT_EQ(kv_tokens({.context = 1'000}, 1), 16);
}

TEST(KvMemory, ARowOfAHeadIsWholeBytes) {
  ModelRef model;
  model.num_kv_heads = 2;
  const Site site{"", 0, 2 * 48, 2 * 16};  // nvfp4: 27 bytes a head of K, 9 of V
  EXPECT_EQ(kv_bytes(model, site, *parse_candidate("nvfp4"), {.context = 16}), 16 * 2 * (27 + 9));
}

TEST(KvMemory, LayersThatAreNoSitesStayAtBf16) {
  SearchSpec spec = llama_8b();
  spec.sites.erase(spec.sites.begin());  // layer 0 is disabled: 4 KiB a token
  const KvLoad load{.context = 16};
  EXPECT_EQ(fixed_kv_bytes(spec, load), 16 * 4'096);
  EXPECT_EQ(assignment_kv_bytes(spec, uniform(spec, "fp8"), load), 16 * (4'096 + 31 * 2'048));
}

TEST(KvMemory, WhatFitsBothWays) {
  const SearchSpec spec = llama_8b();
  // fp8 takes 64 KiB a token: 8 GiB are 131,072 tokens, 4 sequences of 32,768.
  const KvBudget budget{8 * kGiB, {.context = 32'768, .sequences = 4}};
  EXPECT_EQ(most_sequences(spec, uniform(spec, "fp8"), budget), 4);
  EXPECT_EQ(longest_context(spec, uniform(spec, "fp8"), budget), 32'768);
  EXPECT_EQ(most_sequences(spec, uniform(spec, "fp8"), {8 * kGiB - 1, budget.load}), 3);
  EXPECT_EQ(longest_context(spec, uniform(spec, "fp8"), {8 * kGiB - 1, budget.load}), 32'752);
  EXPECT_EQ(most_sequences(spec, uniform(spec, "fp8"), {1, budget.load}), 0);
}

TEST(KvMemory, BadLoadsAreRefusedByName) {
  const SearchSpec model = llama_8b();
  SearchSpec old = model;
  old.model.num_kv_heads = 0;
  const auto field = [&](const KvBudget& budget, const SearchSpec& of) {
    const Status status = validate(budget, of);
    return status.ok() ? "" : status.error().field;
  };
  const KvLoad good{.context = 8};
  EXPECT_EQ(field({kGiB, good}, model), "");
  EXPECT_EQ(field({0, good}, model), "memory");
  EXPECT_EQ(field({kGiB, {.context = 0}}, model), "context");
  EXPECT_EQ(field({kGiB, {.context = 8, .sequences = 0}}, model), "sequences");
  EXPECT_EQ(field({kGiB, {.context = 8, .block_tokens = 0}}, model), "block_tokens");
  EXPECT_EQ(field({kGiB, {.context = 8, .tensor_parallel = 0}}, model), "tp");
  EXPECT_EQ(field({kGiB, {.context = 8, .tensor_parallel = 3}}, model), "tp");
  EXPECT_EQ(field({kGiB, {.context = 8, .tensor_parallel = 2}}, old), "memory");
  EXPECT_EQ(field({kGiB, good}, old), "");
  old.sites.pop_back();
  EXPECT_EQ(field({kGiB, good}, old), "memory");
}

TEST(KvMemory, JsonSaysWhatTheBudgetWas) {
  const KvBudget budget{kGiB,
                        {.context = 8, .sequences = 2, .tensor_parallel = 4, .block_tokens = 32}};
  const Json json = to_json(budget);
  EXPECT_EQ(json["memory_bytes"], kGiB);
  const auto again = kv_budget_from_json(json, "budget");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(to_json(*again), json);
  EXPECT_EQ(kv_budget_from_json({{"memory_bytes", 5}}, "budget").error().field, "budget.context");
}

}  // namespace
}  // namespace bitalloc
