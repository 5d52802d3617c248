// Score tables to assignments. Expected numbers are worked by hand.
#include "solver/allocate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace bitalloc {
namespace {

SearchSpec two_sites() {
  SearchSpec spec;
  spec.model = {"/models/m", "m", "llama", "w", "c", 12, 100};
  spec.sites = {{"model.layers.1.self_attn", 1, 64, 64}, {"model.layers.11.self_attn", 11, 64, 64}};
  spec.candidates = {*parse_candidate("fp8"), *parse_candidate("nvfp4")};
  spec.sequences = 2;
  spec.length = 4;
  spec.sites_per_unit = 2;
  spec.tokens_sha256 = "t";
  return spec;
}

// One batch a sequence, 3 scored tokens in the first and 1 in the second. Sums by row, column:
//   sequence 0: 0.3 0.9 | 0.6 3.0    sequence 1: 0.1 0.3 | 0.2 1.0
ScoreTable full_table(const SearchSpec& spec) {
  ScoreTable table(spec);
  for (const UnitId& unit : table.units()) {
    const bool first = unit.batch.value == 0;
    table.add(
        {unit,
         first ? std::vector<double>{0.3, 0.9, 0.6, 3.0} : std::vector<double>{0.1, 0.3, 0.2, 1.0},
         {first ? 3 : 1},
         {}});
  }
  return table;
}

TEST(Allocate, TakesTheCheaperLossAndReportsPerToken) {
  const SearchSpec spec = two_sites();
  // 6.25 bits: one of the two sites in nvfp4. Sums: site 0 fp8 0.4, nvfp4 1.2; site 1 fp8 0.8,
  // nvfp4 4.0. The first site in nvfp4 costs 1.2 + 0.8, the second 0.4 + 4.0.
  const auto answer = allocate("s", spec, fingerprint(spec), full_table(spec), 6.3, {}, true);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const Json& json = *answer;
  EXPECT_EQ(json["search"], "s");
  EXPECT_EQ(json["budget"]["effective_bits"], 6.3);
  EXPECT_DOUBLE_EQ(json["effective_bits"], 6.25);
  EXPECT_EQ(json["proven_optimal"], true);
  EXPECT_EQ(json["sites"][0]["candidate"], "nvfp4/nvfp4");
  EXPECT_EQ(json["sites"][0]["bits"], 4.5);
  EXPECT_EQ(json["sites"][1]["candidate"], "fp8_e4m3/fp8_e4m3");
  EXPECT_DOUBLE_EQ(json["objective_kl_nats"], (1.2 + 0.8) / 4);
  EXPECT_DOUBLE_EQ(json["sites"][0]["kl_nats_per_token"], 1.2 / 4);
  const Json& score = json["sites"][1]["scores"]["nvfp4/nvfp4"];
  EXPECT_DOUBLE_EQ(score["kl_sum_nats"], 4.0);
  EXPECT_EQ(score["tokens"], 4);
  // Both sequences have exactly 1 nat a token: no spread.
  EXPECT_NEAR(score["standard_error"], 0, 1e-15);
}

TEST(Allocate, PinsAreKeptAndTheReferenceIsFree) {
  const SearchSpec spec = two_sites();
  const ScoreTable table = full_table(spec);
  const auto pinned = [&](const Pins& pins, double bits) {
    return allocate("s", spec, fingerprint(spec), table, bits, pins, false);
  };
  const auto nvfp4 = pinned({{"layers.11", "nvfp4"}}, 6.25);
  ASSERT_TRUE(nvfp4.ok()) << nvfp4.error().message;
  EXPECT_DOUBLE_EQ((*nvfp4)["objective_kl_nats"], (0.4 + 4.0) / 4);
  const auto bf16 = pinned({{"model.layers.11.self_attn", "bf16"}}, 10.25);  // (16 + 4.5) / 2
  ASSERT_TRUE(bf16.ok()) << bf16.error().message;
  EXPECT_DOUBLE_EQ((*bf16)["objective_kl_nats"], 1.2 / 4);
  EXPECT_DOUBLE_EQ((*bf16)["effective_bits"], 10.25);
  EXPECT_EQ(pinned({{"layers.11", "bf16"}}, 10).error().code, ErrorCode::kInfeasible);
  EXPECT_NE(pinned({{"self_attn", "nvfp4"}}, 6).error().message.find("several"), std::string::npos);
  EXPECT_EQ(pinned({{"layers.2", "nvfp4"}}, 6).error().field, "pins");
  EXPECT_EQ(pinned({{"layers.1", "fp8/nvfp4"}}, 6).error().field, "pins");
}

TEST(Allocate, RefusesWhatCannotBeAnswered) {
  const SearchSpec spec = two_sites();
  const Fingerprint print = fingerprint(spec);
  const Error low = allocate("s", spec, print, full_table(spec), 4.4, {}, false).error();
  EXPECT_EQ(low.code, ErrorCode::kInfeasible);
  EXPECT_NE(low.message.find("4.5"), std::string::npos) << low.message;
  EXPECT_EQ(allocate("s", spec, print, full_table(spec), std::nan(""), {}, false).error().code,
            ErrorCode::kInvalidArgument);
  ScoreTable half(spec);
  EXPECT_EQ(allocate("s", spec, print, half, 6, {}, false, true).error().code,
            ErrorCode::kUnavailable);
  half.add(full_table(spec).result(half.units()[0]));
  const Error unfinished = allocate("s", spec, print, half, 6, {}, false).error();
  EXPECT_EQ(unfinished.code, ErrorCode::kUnavailable);
  EXPECT_NE(unfinished.message.find("50 % done"), std::string::npos);
  const auto partial = allocate("s", spec, print, half, 6.25, {}, false, true);
  ASSERT_TRUE(partial.ok()) << partial.error().message;
  EXPECT_EQ((*partial)["partial"], true);
}

TEST(Allocate, FrontierGrowsInBitsAndFallsInLoss) {
  const SearchSpec spec = two_sites();
  const auto points = frontier_json("s", spec, full_table(spec));
  ASSERT_TRUE(points.ok()) << points.error().message;
  ASSERT_EQ(points->size(), 3u);  // both nvfp4, one of them, none
  EXPECT_EQ((*points)[0]["effective_bits"], 4.5);
  EXPECT_DOUBLE_EQ((*points)[0]["objective_kl_nats"], 5.2 / 4);
  EXPECT_DOUBLE_EQ((*points)[1]["objective_kl_nats"], 2.0 / 4);
  EXPECT_EQ((*points)[2]["assignment"]["model.layers.11.self_attn"], "fp8_e4m3/fp8_e4m3");
}

TEST(Allocate, ReachableBitsFollowTheCandidates) {
  const BitsRange range = reachable_bits(two_sites());
  EXPECT_DOUBLE_EQ(range.lowest, 4.5);
  EXPECT_DOUBLE_EQ(range.highest, 8.0);
}

TEST(Allocate, ValidationRowsAreThoseOfTheirDefinitions) {
  SearchSpec spec = two_sites();
  spec.kind = JobKind::kValidation;
  spec.candidates.clear();
  spec.configurations = {{"half", {*parse_candidate("fp8"), *parse_candidate("nvfp4")}}};
  ScoreTable table(spec);
  // KL, negative log-likelihood, agreements, next tokens; 4 and 2 scored tokens.
  table.add({table.units()[0], {0.4, 3.0, 4, 3}, {4}, {}});
  table.add({table.units()[1], {0.2, 5.0, 1, 1}, {2}, {}});
  const auto rows = validation_json("v", spec, table);
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  const Json& row = (*rows)[0];
  EXPECT_EQ(row["configuration"], "half");
  EXPECT_DOUBLE_EQ(row["effective_bits"], 6.25);
  EXPECT_DOUBLE_EQ(row["kl_nats_per_token"], 0.6 / 6);
  EXPECT_DOUBLE_EQ(row["perplexity"], std::exp(8.0 / 4));
  EXPECT_DOUBLE_EQ(row["top1_agreement"], 5.0 / 6);
  // Residuals 3 − 2·3 = −3 and 5 − 2·1 = 3: √(2/1 · 18) / 4 = 1.5, times exp(2).
  EXPECT_DOUBLE_EQ(row["standard_error"]["perplexity"], 1.5 * std::exp(2.0));
  EXPECT_FALSE(validation_json("s", two_sites(), full_table(two_sites())).ok());
}

}  // namespace
}  // namespace bitalloc
