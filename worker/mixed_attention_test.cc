// Attention over a cache of stored and exact tokens, in one pass, against token-by-token decoding.
#include "worker/mixed_attention.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/json.h"
#include "common/tokens.h"
#include "kernels/torch_ops.h"
#include "worker/memory_plan.h"
#include "worker/models/families.h"
#include "worker/scorer.h"
#include "worker/views.h"

namespace bitalloc {
namespace {

namespace fs = std::filesystem;
const fs::path kFixtures = fs::path(BITALLOC_SOURCE_DIR) / "tests/fixtures";
const std::atomic<bool> kNotCancelled{false};

// One side (K or V) of one head of one sequence, kept as the packages do.
class Cache {
 public:
  Cache(const Format& format, Side side) : format_(format), side_(side) {}

  void append(const at::Tensor& row) { exact_.push_back(row); }

  // What the query of the newest token reads: [tokens, head_dim].
  at::Tensor read() {
    const Visibility rule = visibility_of(format_);
    if (rule.see == See::kAll) store(exact_.size());
    if (rule.see == See::kWindow && std::ssize(exact_) > rule.window) {
      store(exact_.size() - static_cast<size_t>(rule.window));
    }
    return rows();
  }
  // After the query, or after the prompt's.
  void settle(bool is_prompt) {
    const Visibility rule = visibility_of(format_);
    const auto window = static_cast<size_t>(rule.window);
    const bool one_by_one = rule.see == See::kWindow || side_ == Side::kV;
    if (rule.see == See::kAfterPrefill) {
      if (is_prompt || exact_.size() >= window) store(exact_.size());
    } else if (rule.see != See::kAll && one_by_one) {
      if (exact_.size() > window) store(exact_.size() - window);
    } else if (rule.see == See::kKivi) {
      store(exact_.size() / window * window);
    }
  }

 private:
  at::Tensor rows() const {
    std::vector<at::Tensor> all = stored_;
    all.insert(all.end(), exact_.begin(), exact_.end());
    return at::stack(all);
  }
  // The oldest `count` exact rows become what the format makes of them.
  void store(size_t count) {
    if (count == 0) return;
    Format plain = format_;
    plain.see = See::kAll;
    plain.window = plain.prefill = 0;
    const at::Tensor block = at::stack(std::vector<at::Tensor>(
        exact_.begin(), exact_.begin() + static_cast<std::ptrdiff_t>(count)));
    const at::Tensor made = fake_quantize(block, plain, 448);
    for (size_t i = 0; i < count; ++i) stored_.push_back(made[static_cast<int64_t>(i)]);
    exact_.erase(exact_.begin(), exact_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  Format format_;
  Side side_;
  std::vector<at::Tensor> stored_;
  std::vector<at::Tensor> exact_;
};

// Queries, keys and values of one head: [tokens, head_dim]. One token after the other, behind a
// prompt of `prefill` tokens that is answered at once, from exact tokens.
at::Tensor decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const Candidate& candidate, int64_t sliding_window) {
  const int64_t prefill = visibility_of(candidate.k).prefill;
  Cache keys(candidate.k, Side::kK);
  Cache values(candidate.v, Side::kV);
  std::vector<at::Tensor> out;
  const auto answer = [&](const at::Tensor& query, at::Tensor seen_k, at::Tensor seen_v) {
    if (sliding_window > 0 && seen_k.size(0) > sliding_window) {
      const int64_t skipped = seen_k.size(0) - sliding_window;
      seen_k = seen_k.narrow(0, skipped, sliding_window);
      seen_v = seen_v.narrow(0, skipped, sliding_window);
    }
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(1)));
    const at::Tensor weights = at::softmax(at::mv(seen_k, query) * scale, 0);
    out.push_back(at::mv(seen_v.t(), weights));
  };
  for (int64_t i = 0; i < q.size(0); ++i) {
    keys.append(k[i]);
    values.append(v[i]);
    if (i < prefill) {
      answer(q[i], k.narrow(0, 0, i + 1), v.narrow(0, 0, i + 1));
      if (i + 1 < prefill) continue;
      keys.settle(true);
      values.settle(true);
    } else {
      answer(q[i], keys.read(), values.read());
      keys.settle(false);
      values.settle(false);
    }
  }
  return at::stack(out);
}

const char* const kCandidates[] = {
    "nvfp4[see=window,window=7]",
    "nvfp4[see=window,window=1]",
    "int4[group=32,axis=channel,see=kivi,window=32]/int4[group=32,see=kivi,window=32]",
    "int2[group=32,axis=channel,see=kivi,window=64,prefill=50]/"
    "int2[group=32,see=kivi,window=64,prefill=50]",
    "int4[see=after_prefill,prefill=40,window=16]",
    "int4[see=after_prefill,prefill=40,window=128]",
    "fp8_e4m3/nvfp4[see=window,window=20]",
    "nvfp4[see=kivi,window=24]/fp8_e4m3",
    "nvfp4[rotate=hadamard,see=window,window=5]",
};

SeenKv seen_of(const Candidate& candidate, const KvPair& exact) {
  return {{fake_quantize(exact.k, candidate.k, 448), fake_quantize(exact.v, candidate.v, 448)},
          exact,
          visibility_of(candidate.k),
          visibility_of(candidate.v)};
}

TEST(MixedAttention, EqualsTokenByTokenDecoding) {
  const c10::InferenceMode guard;
  at::manual_seed(7);
  const int64_t batch = 2, heads = 4, kv_heads = 2, tokens = 150, head_dim = 32;
  const at::Tensor q = at::randn({batch, heads, tokens, head_dim});
  const KvPair exact{at::randn({batch, kv_heads, tokens, head_dim}),
                     at::randn({batch, kv_heads, tokens, head_dim})};
  for (const char* name : kCandidates) {
    const auto candidate = parse_candidate(name);
    ASSERT_TRUE(candidate.ok()) << name;
    for (const int64_t sliding_window : {0, 37}) {
      const at::Tensor out = mixed_attention(q, seen_of(*candidate, exact), sliding_window);
      for (int64_t sequence = 0; sequence < batch; ++sequence) {
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t kv = head / (heads / kv_heads);
          const at::Tensor expected = decode(q[sequence][head], exact.k[sequence][kv],
                                             exact.v[sequence][kv], *candidate, sliding_window);
          const float apart = (out[sequence][head] - expected).abs().max().item<float>();
          EXPECT_LT(apart, 1e-5) << name << " sliding window " << sliding_window;
        }
      }
    }
  }
}

TEST(MixedAttention, WithoutExactTokensIsPlainAttention) {
  const c10::InferenceMode guard;
  at::manual_seed(8);
  const at::Tensor q = at::randn({1, 2, 90, 16});
  const KvPair kv{at::randn({1, 2, 90, 16}), at::randn({1, 2, 90, 16})};
  const SeenKv seen(kv, {at::zeros_like(kv.k), at::zeros_like(kv.v)}, Visibility(), Visibility());
  const at::Tensor expected =
      at::scaled_dot_product_attention(q, kv.k, kv.v, std::nullopt, 0.0, true);
  EXPECT_LT((mixed_attention(q, seen, 0) - expected).abs().max().item<float>(), 2e-6);
}

// So long that there are many tiles.
TEST(MixedAttention, TilesDoNotShow) {
  const c10::InferenceMode guard;
  at::manual_seed(9);
  const int64_t tokens = 1500;
  ASSERT_LT(mixed_tile({tokens, 1, 2, 16, /*on_cpu=*/true}).queries, 200);
  const at::Tensor q = at::randn({1, 2, tokens, 16});
  const KvPair exact{at::randn({1, 1, tokens, 16}), at::randn({1, 1, tokens, 16})};
  const auto candidate = *parse_candidate("nvfp4[see=window,window=300]");
  const SeenKv seen = seen_of(candidate, exact);
  const at::Tensor out = mixed_attention(q, seen, 0);
  for (const int64_t i : {0L, 299L, 300L, 777L, 1499L}) {
    const int64_t stored = std::max<int64_t>(0, i + 1 - 300);
    const auto mix = [&](const at::Tensor& a, const at::Tensor& b) {
      return at::cat({a[0][0].narrow(0, 0, stored), b[0][0].narrow(0, stored, i + 1 - stored)});
    };
    const at::Tensor weights =
        at::softmax(at::mv(mix(seen.stored.k, exact.k), q[0][1][i]) / 4.0, 0);
    const at::Tensor expected = at::mv(mix(seen.stored.v, exact.v).t(), weights);
    EXPECT_LT((out[0][1][i] - expected).abs().max().item<float>(), 1e-5) << i;
  }
}

// Tiles as GPUs have them, of several heads, and tiles of one query.
TEST(MixedAttention, TilesOfSeveralHeads) {
  const c10::InferenceMode guard;
  at::manual_seed(10);
  const int64_t heads = 6, kv_heads = 3, tokens = 70, head_dim = 32;
  const at::Tensor q = at::randn({1, heads, tokens, head_dim});
  const KvPair exact{at::randn({1, kv_heads, tokens, head_dim}),
                     at::randn({1, kv_heads, tokens, head_dim})};
  for (const char* name : {kCandidates[0], kCandidates[3], kCandidates[6]}) {
    const auto candidate = *parse_candidate(name);
    const SeenKv seen = seen_of(candidate, exact);
    for (const int64_t sliding_window : {0, 9}) {
      std::vector<at::Tensor> expected;
      for (int64_t head = 0; head < heads; ++head) {
        expected.push_back(decode(q[0][head], exact.k[0][head / 2], exact.v[0][head / 2], candidate,
                                  sliding_window));
      }
      for (const MixedTile& tile : {MixedTile{3, 70}, {2, 13}, {1, 1}}) {
        const at::Tensor out = mixed_attention(q, seen, sliding_window, tile);
        EXPECT_LT((out[0] - at::stack(expected)).abs().max().item<float>(), 1e-5)
            << name << " sliding window " << sliding_window << " tile " << tile.kv_heads << " × "
            << tile.queries;
      }
    }
  }
}

// Scores once went through bfloat16 on their way to the softmax: off by 2^-9 of 20, a twentieth of
// a weight.
TEST(MixedAttention, Bfloat16IsRoundedOnceAtTheEnd) {
  const c10::InferenceMode guard;
  at::manual_seed(11);
  const int64_t tokens = 90, head_dim = 32;
  const auto bf16 = [&](int64_t heads, double scale) {
    return (at::randn({1, heads, tokens, head_dim}) * scale).to(at::kBFloat16);
  };
  const at::Tensor q = bf16(4, 6);
  const KvPair exact{bf16(2, 1), bf16(2, 1)};
  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
  for (const char* name : {"nvfp4[see=window,window=7]", "int4[see=kivi,window=16]",
                           "int4[see=after_prefill,prefill=40,window=16]"}) {
    const SeenKv seen = seen_of(*parse_candidate(name), exact);
    const at::Tensor out = mixed_attention(q, seen, 0);
    ASSERT_EQ(out.scalar_type(), at::kBFloat16);
    for (int64_t head = 0; head < 4; ++head) {
      for (int64_t i = 0; i < tokens; ++i) {
        const auto mix = [&](const at::Tensor& a, const at::Tensor& b, int64_t stored) {
          return wide(at::cat({a[0][head / 2].narrow(0, 0, stored),
                               b[0][head / 2].narrow(0, stored, i + 1 - stored)}));
        };
        const at::Tensor k = mix(seen.stored.k, seen.exact.k, stored_tokens(seen.k, Side::kK, i));
        const at::Tensor v = mix(seen.stored.v, seen.exact.v, stored_tokens(seen.v, Side::kV, i));
        const at::Tensor weights = at::softmax(
            at::mv(k, wide(q[0][head][i])) / std::sqrt(static_cast<double>(head_dim)), 0);
        const at::Tensor expected = at::mv(v.t(), weights);
        // Half a unit in the last of 8 bits, and float32's own error.
        const at::Tensor allowed = expected.abs() / 256 + 1e-5;
        EXPECT_TRUE(((wide(out[0][head][i]) - expected).abs() <= allowed).all().item<bool>())
            << name << " head " << head << " query " << i;
      }
    }
  }
}

// ---- through a network ----

// tests/oracle/make_quantized_cache.py: a prompt, then one token after the other, with the cache of
// transformers. It quantizes its whole history anew whenever it stores tokens; that changes nothing
// in what was quantized before (measured: no value in 256 rounds in float32 and bfloat16, one in
// 500 by an ulp in float16).
TEST(MixedAttention, EqualsTransformersQuantizedCache) {
  const c10::InferenceMode guard;
  const auto text =
      read_file(fs::path(BITALLOC_SOURCE_DIR) / "tests/oracle/quantized_cache.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const Json oracle = *parse_json(*text, "quantized_cache.json");
  const auto files = inspect_model(kFixtures / "small/model");
  ASSERT_TRUE(files.ok()) << files.error().message;
  const Decoder decoder = load_decoder(*files, at::kCPU, at::kFloat);
  const int64_t tokens = oracle.at("tokens");
  const int64_t vocab = files->config.vocab_size;
  const at::Tensor ids = at::arange(tokens, at::kLong).mul(7919).remainder(vocab).unsqueeze(0);
  const TokenContext context = decoder.make_token_context(at::ones({1, tokens}, at::kBool));
  const at::Tensor real = at::ones({1, tokens}, at::kBool);
  std::vector<SiteTask> sites;
  for (int i = 0; i < files->config.num_layers; ++i) sites.push_back({.layer = i});
  for (const char* kind : {"exact", "int2", "int4"}) {
    const std::string parameters =
        fmt::format("[group={},arithmetic=fp32,see=after_prefill,window={},prefill={}]",
                    oracle.at("group").get<int>(), oracle.at("window").get<int>(),
                    oracle.at("prefill").get<int>());
    const bool exact = std::string(kind) == "exact";
    const auto candidate = parse_candidate(exact ? "bf16" : kind + parameters);
    ASSERT_TRUE(candidate.ok()) << candidate.error().message;
    const std::vector<Candidate> assignment(sites.size(), *candidate);
    const at::Tensor normed = decoder.forward(ids, context, AssignedKv(sites, assignment, real));
    const at::Tensor log_p = at::log_softmax(decoder.logits(normed[0]).to(at::kDouble), -1);
    const std::vector<double> expected = oracle.at(kind);
    ASSERT_EQ(std::ssize(expected), tokens - 1);
    for (int64_t i = 0; i + 1 < tokens; ++i) {
      const double loss = -log_p[i][ids[0][i + 1].item<int64_t>()].item<double>();
      EXPECT_NEAR(loss, expected[i], 2e-4) << kind << " position " << i;
    }
  }
}

// ---- through the scorer ----

TokenSet whole_sequences(int64_t sequences, int64_t length, int64_t vocab) {
  TokenSet tokens;
  tokens.sequences = sequences;
  tokens.length = length;
  for (int64_t i = 0; i < sequences * length; ++i) {
    tokens.input_ids.push_back(static_cast<int32_t>(i * 7919 % vocab));
    tokens.mask.push_back(1);
  }
  return tokens;
}

// A window as long as the sequences shows every query exact tokens, and one of a single token
// nearly what it sees without one.
TEST(MixedAttention, ScoresGrowFromNothingToThoseWithoutAWindow) {
  const auto scorer = Scorer::load(kFixtures / "small/model", {.threads = 2});
  ASSERT_TRUE(scorer.ok()) << scorer.error().message;
  const TokenSet tokens = whole_sequences(2, 48, (*scorer)->files().config.vocab_size);
  std::vector<Candidate> candidates;
  for (const char* name : {"nvfp4[see=window,window=48]", "nvfp4[see=window,window=24]",
                           "nvfp4[see=window,window=1]", "nvfp4"}) {
    candidates.push_back(*parse_candidate(name));
  }
  const auto scores = (*scorer)->score(tokens, "batch", {{.layer = 3}}, candidates, kNotCancelled);
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  std::vector<double> sums;
  for (size_t c = 0; c < candidates.size(); ++c) {
    sums.push_back(scores->kl_sums[2 * c] + scores->kl_sums[2 * c + 1]);
  }
  EXPECT_LT(sums[0], 1e-6 * sums[3]);
  EXPECT_GT(sums[1], 1e-3 * sums[3]);
  EXPECT_LT(sums[1], sums[3]);
  EXPECT_NEAR(sums[2] / sums[3], 1, 0.5);
}

// A sequence scores the same alone and with padding behind it.
TEST(MixedAttention, PaddingBehindTakesNoPart) {
  const auto scorer = Scorer::load(kFixtures / "small/model", {.threads = 1});
  ASSERT_TRUE(scorer.ok()) << scorer.error().message;
  const int64_t vocab = (*scorer)->files().config.vocab_size;
  const TokenSet alone = whole_sequences(1, 40, vocab);
  TokenSet padded = whole_sequences(1, 64, vocab);
  for (size_t i = 40; i < 64; ++i) padded.mask[i] = 0;
  TokenSet both = padded;  // with a longer one, whose chunk it shares
  both.sequences = 2;
  both.input_ids.insert(both.input_ids.end(), padded.input_ids.begin(), padded.input_ids.end());
  both.mask.insert(both.mask.end(), 64, 1);
  for (const char* name :
       {"int4[group=32,axis=channel]", "nvfp4[see=window,window=8]",
        "int2[group=32,axis=channel,see=kivi,window=32]/int2[see=kivi,window=32]"}) {
    const auto score = [&](const TokenSet& tokens, const std::string& key) {
      const auto scores = (*scorer)->score(tokens, name + key, {{.layer = 0}},
                                           {*parse_candidate(name)}, kNotCancelled);
      EXPECT_TRUE(scores.ok()) << scores.error().message;
      return scores->kl_sums[0];
    };
    const double expected = score(alone, "alone");
    EXPECT_NEAR(score(padded, "padded") / std::max(expected, 1e-30), 1, 1e-4) << name;
    EXPECT_NEAR(score(both, "both") / std::max(expected, 1e-30), 1, 1e-4) << name;
  }
}

TEST(MixedAttention, PaddingBeforeATokenIsRefusedWherePositionsCount) {
  const auto scorer = Scorer::load(kFixtures / "small/model", {.threads = 1});
  ASSERT_TRUE(scorer.ok()) << scorer.error().message;
  TokenSet tokens = whole_sequences(2, 40, (*scorer)->files().config.vocab_size);
  tokens.mask[40] = 0;
  for (const char* name : {"nvfp4[see=window,window=8]", "int4[group=32,axis=channel]/fp8"}) {
    const auto refused =
        (*scorer)->score(tokens, name, {{.layer = 0}}, {*parse_candidate(name)}, kNotCancelled);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("sequence 1"), std::string::npos);
  }
  const auto plain =
      (*scorer)->score(tokens, "plain", {{.layer = 0}}, {*parse_candidate("nvfp4")}, kNotCancelled);
  EXPECT_TRUE(plain.ok());
}

}  // namespace
}  // namespace bitalloc
