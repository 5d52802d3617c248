// Limits in people's terms, worked by hand on two sites of four elements a side, and against an
// enumeration of all assignments.
#include "solver/limits.h"

#include <gtest/gtest.h>

#include "common/kv_memory.h"
#include "solver/allocate.h"

namespace bitalloc {
namespace {

// Four layers of one KV head of 64: a token takes 256 bytes in bf16, 128 in fp8, 72 in nvfp4.
SearchSpec four_sites() {
  SearchSpec spec;
  spec.model = {"/models/m", "m", "llama", "w", "c", 4, 100, 1, 64, {}};
  for (int layer = 0; layer < 4; ++layer) {
    spec.sites.push_back({fmt::format("model.layers.{}.self_attn", layer), layer, 64, 64});
  }
  spec.candidates = {*parse_candidate("fp8"), *parse_candidate("fp8/nvfp4"),
                     *parse_candidate("nvfp4/fp8"), *parse_candidate("nvfp4")};
  spec.sequences = 2;
  spec.length = 4;
  spec.sites_per_unit = 4;
  spec.tokens_sha256 = "t";
  return spec;
}

// Nats a token: layer i costs (i + 1) × {1, 2, 4, 8}, in both sequences of one token each.
ScoreTable full_table(const SearchSpec& spec) {
  ScoreTable table(spec);
  for (const UnitId& unit : table.units()) {
    UnitResult result{unit, {}, {1}, {}};
    for (int layer = 1; layer <= 4; ++layer) {
      for (const double score : {1.0, 2.0, 4.0, 8.0}) result.sums.push_back(layer * score);
    }
    table.add(result);
  }
  return table;
}

class LimitsTest : public ::testing::Test {
 protected:
  Result<Json> best(double bits, const Limits& limits, const Pins& pins = {}) {
    return allocate("s", spec_, fingerprint(spec_), table_, bits, {.pins = pins, .limits = limits});
  }
  // The candidates, one letter a site: f, m (fp8/nvfp4), w (nvfp4/fp8), n, b (bf16).
  std::string letters(const Result<Json>& answer) {
    if (!answer.ok()) return answer.error().message;
    std::string text;
    for (const Json& site : (*answer)["sites"]) {
      const std::string name = site["candidate"];
      text += name == "fp8_e4m3/fp8_e4m3" ? 'f'
              : name == "fp8_e4m3/nvfp4"  ? 'm'
              : name == "nvfp4/fp8_e4m3"  ? 'w'
              : name == "nvfp4/nvfp4"     ? 'n'
                                          : 'b';
    }
    return text;
  }

  const SearchSpec spec_ = four_sites();
  const ScoreTable table_ = full_table(spec_);
};

// One sequence of 16 tokens. All fp8: 4 × 128 × 16 = 8192 bytes; each step to m saves 448.
TEST_F(LimitsTest, MemoryIsBytesOfTheCache) {
  Limits limits;
  limits.memory = KvBudget{8'192, {.context = 16}};
  EXPECT_EQ(letters(best(0, limits)), "ffff");
  limits.memory->bytes = 8'191;  // one step: the first layer loses least
  EXPECT_EQ(letters(best(0, limits)), "mfff");
  limits.memory->bytes = 8'192 - 2 * 448;  // two steps: 1 + 2 (two layers to m) beat 7 (one to n)
  EXPECT_EQ(letters(best(0, limits)), "mmff");
  const Result<Json> answer = best(0, limits);
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE((*answer)["budget"]["effective_bits"].is_null());
  EXPECT_EQ((*answer)["memory"]["kv_bytes"], 8'192 - 2 * 448);
  EXPECT_EQ((*answer)["memory"]["most_sequences"], 1);
  EXPECT_EQ((*answer)["memory"]["longest_context"], 16);
  EXPECT_EQ((*answer)["proven_optimal"], true);
}

TEST_F(LimitsTest, TooLittleMemorySaysWhatWouldFit) {
  Limits limits;  // all nvfp4: 4 × 72 × 16 = 4608 bytes a block of 16 tokens
  limits.memory = KvBudget{4'608 * 5, {.context = 48, .sequences = 2}};
  const Result<Json> answer = best(0, limits);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kInfeasible);
  EXPECT_EQ(answer.error().field, "memory");
  EXPECT_NE(answer.error().message.find("27.00 KiB (27648 bytes)"), std::string::npos)
      << answer.error().message;
  EXPECT_EQ(answer.error().hint,
            "at most 1 sequences of 48 tokens fit, or 2 sequences of 32 tokens");
}

TEST_F(LimitsTest, MemoryAndBitsHoldTogether) {
  Limits limits;
  limits.memory = KvBudget{8'191, {.context = 16}};
  // 6.25 bits are four steps of 1.75 / 4 below 8: the tighter one counts.
  EXPECT_EQ(letters(best(6.25, limits)), letters(best(6.25, {})));
  EXPECT_EQ(letters(best(8, limits)), "mfff");
}

TEST_F(LimitsTest, TheBudgetOfTheSubmissionIsTheDefault) {
  SearchSpec spec = spec_;
  spec.memory = KvBudget{8'191, {.context = 16}};
  const auto answer = allocate("s", spec, fingerprint(spec), table_, 0);
  EXPECT_EQ(letters(answer), "mfff");
  spec.memory.reset();
  EXPECT_EQ(allocate("s", spec, fingerprint(spec), table_, 0).error().field, "effective_bits");
}

TEST_F(LimitsTest, ExclusionsGroupsAndPrecisionOfK) {
  Limits limits;
  limits.exclude = {{"layers.0", "fp8/nvfp4"}};
  // One step of 7 bytes a token: the first layer to w loses 3, the second to m 2.
  EXPECT_EQ(letters(best(7.6, limits)), "fmff");
  limits.exclude = {{"*", "fp8/nvfp4"}};
  EXPECT_EQ(letters(best(7.6, limits)), "wfff");
  limits.k_not_below_v = true;  // w, too: the first layer goes to n, and loses 7
  EXPECT_EQ(letters(best(7.6, limits)), "nfff");
  limits = {};
  limits.same = {{"layers.0", "layers.1", "layers.2", "layers.3"}};
  EXPECT_EQ(letters(best(7.6, limits)), "mmmm");
}

TEST_F(LimitsTest, FewFormatsAndFewChanges) {
  Limits limits;
  limits.max_formats = 1;
  EXPECT_EQ(letters(best(5, limits)), "nnnn");
  limits.max_formats = 2;  // of m and n: three layers n would be 4.9375 bits
  EXPECT_EQ(letters(best(5, limits)), "nnnm");
  limits = {};
  limits.deployed = Deployed{
      {{"layers.0", "fp8"}, {"layers.1", "fp8"}, {"layers.2", "fp8"}, {"layers.3", "bf16"}}, 1};
  // 10 bits were deployed. One change: the last layer, whose bf16 has most bits, to f.
  EXPECT_EQ(letters(best(8, limits)), "ffff");
  limits.deployed->max_changes = 0;
  EXPECT_EQ(letters(best(10, limits)), "fffb");
  const Result<Json> none = best(9.9, limits);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("max_changes 0"), std::string::npos) << none.error().message;
}

TEST_F(LimitsTest, CostsAreRowsOfTheirOwn) {
  Limits limits;
  limits.costs = {{"latency", {{"fp8", 3}, {"fp8/nvfp4", 2}, {"nvfp4/fp8", 3}}, 10, std::nullopt}};
  // 12 at all f: two steps to m at the layers that lose least.
  EXPECT_EQ(letters(best(8, limits)), "mmff");
  limits.costs[0].upper.reset();
  limits.costs[0].lower = 13;
  const Result<Json> none = best(8, limits);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("latency"), std::string::npos) << none.error().message;
}

// The budget needs nvfp4 in both pinned layers' places.
TEST_F(LimitsTest, AConflictNamesItsParts) {
  const Result<Json> answer = best(4.5, {}, {{"layers.1", "fp8"}});
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kInfeasible);
  EXPECT_NE(answer.error().message.find("pin layers.1=fp8"), std::string::npos)
      << answer.error().message;
}

TEST_F(LimitsTest, ConfidenceKeepsToTheLimits) {
  Limits limits;
  limits.memory = KvBudget{8'191, {.context = 16}};
  const auto answer = allocate("s", spec_, fingerprint(spec_), table_, 0,
                               {.limits = limits, .confidence = ConfidenceOptions{.resamples = 5}});
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  for (const auto& [site, share] : (*answer)["confidence"]["stability"].items()) {
    EXPECT_EQ(share, 1.0) << site;  // both sequences are alike
  }
}

struct BadLimits {
  const char* json;
  const char* field;
};
class LimitsJson : public ::testing::TestWithParam<BadLimits> {};

TEST_P(LimitsJson, IsRefusedByName) {
  const auto limits = limits_from_json(Json::parse(GetParam().json), "limits");
  ASSERT_FALSE(limits.ok());
  EXPECT_EQ(limits.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(limits.error().field, GetParam().field);
}

INSTANTIATE_TEST_SUITE_P(
    Inputs, LimitsJson,
    ::testing::Values(
        BadLimits{R"([])", "limits"}, BadLimits{R"({"bits": 3})", "limits.bits"},
        BadLimits{R"({"memory": {"memory_bytes": "8GiB", "context": 3}})",
                  "limits.memory.memory_bytes"},
        BadLimits{R"({"exclude": [["a"]]})", "limits.exclude"},
        BadLimits{R"({"same": [3]})", "limits.same"},
        BadLimits{R"({"max_formats": 1.5})", "limits.max_formats"},
        BadLimits{R"({"deployed": {"candidates": {}}})", "limits.deployed.max_changes"},
        BadLimits{R"({"costs": [{"name": "a", "cost": {"fp8": 1}}]})", "limits.costs[0].upper"},
        BadLimits{R"({"costs": [{"name": "a", "cost": {"fp8": "x"}, "upper": 1}]})",
                  "limits.costs[0].cost.fp8"}));

TEST(LimitsJson, SaysAllThatWasAsked) {
  const Json asked = Json::parse(R"({
    "memory": {"memory_bytes": 5, "context": 2, "sequences": 3, "tp": 1, "block_tokens": 16},
    "exclude": [["*", "nvfp4"]], "same": [["a", "b"]], "k_not_below_v": true, "max_formats": 2,
    "deployed": {"candidates": {"a": "fp8"}, "max_changes": 1},
    "costs": [{"name": "us", "cost": {"fp8": 1.5}, "upper": 2.0}]})");
  const auto limits = limits_from_json(asked, "limits");
  ASSERT_TRUE(limits.ok()) << limits.error().message;
  EXPECT_EQ(to_json(*limits), asked);
}

}  // namespace
}  // namespace bitalloc
