// Score tables to assignments. Expected numbers are worked by hand.
#include "solver/allocate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "solver/validation_rows.h"

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
  const auto answer =
      allocate("s", spec, fingerprint(spec), full_table(spec), 6.3, {.with_scores = true});
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
    return allocate("s", spec, fingerprint(spec), table, bits, {.pins = pins});
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
  const Error low = allocate("s", spec, print, full_table(spec), 4.4).error();
  EXPECT_EQ(low.code, ErrorCode::kInfeasible);
  EXPECT_NE(low.message.find("4.5"), std::string::npos) << low.message;
  EXPECT_EQ(allocate("s", spec, print, full_table(spec), std::nan("")).error().code,
            ErrorCode::kInvalidArgument);
  ScoreTable half(spec);
  EXPECT_EQ(allocate("s", spec, print, half, 6, {.partial = true}).error().code,
            ErrorCode::kUnavailable);
  half.add(full_table(spec).result(half.units()[0]));
  const Error unfinished = allocate("s", spec, print, half, 6).error();
  EXPECT_EQ(unfinished.code, ErrorCode::kUnavailable);
  EXPECT_NE(unfinished.message.find("50 % done"), std::string::npos);
  const auto partial = allocate("s", spec, print, half, 6.25, {.partial = true});
  ASSERT_TRUE(partial.ok()) << partial.error().message;
  EXPECT_EQ((*partial)["partial"], true);
}

TEST(Allocate, FrontierGrowsInBitsAndFallsInLoss) {
  const SearchSpec spec = two_sites();
  const auto answer = frontier_json("s", spec, full_table(spec));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ((*answer)["exact"], true);
  const Json& points = (*answer)["frontier"];
  ASSERT_EQ(points.size(), 3u);  // both nvfp4, one of them, none
  EXPECT_EQ(points[0]["effective_bits"], 4.5);
  EXPECT_DOUBLE_EQ(points[0]["objective_kl_nats"], 5.2 / 4);
  EXPECT_DOUBLE_EQ(points[1]["objective_kl_nats"], 2.0 / 4);
  EXPECT_NEAR(points[1]["objective_standard_error"], 0, 1e-15);  // 1 nat a token in both sequences
  EXPECT_EQ(points[2]["assignment"]["model.layers.11.self_attn"], "fp8_e4m3/fp8_e4m3");
  // ln 1.3, ln 0.5, ln 0.3 at 4.5, 6.25, 8: the middle is 0.15 of the range below the chord.
  EXPECT_EQ(points[1]["knee"], true);
  EXPECT_EQ(points[0]["knee"], false);
}

// One site a unit, and only the last one's scores are in.
TEST(Allocate, TheFrontierOfASearchUnderWayIsOfTheScoredSites) {
  SearchSpec spec = two_sites();
  spec.sites_per_unit = 1;
  ScoreTable table(spec);
  EXPECT_EQ(frontier_json("s", spec, table, true).error().code, ErrorCode::kUnavailable);
  table.add({table.units()[0], {0.6, 3.0}, {3}, {}});
  EXPECT_EQ(frontier_json("s", spec, table).error().code, ErrorCode::kUnavailable);
  const auto answer = frontier_json("s", spec, table, true);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ((*answer)["partial"], true);
  EXPECT_EQ((*answer)["sites"], 2);
  EXPECT_EQ((*answer)["scored_sites"], 1);
  const Json& point = (*answer)["frontier"][0];
  EXPECT_EQ(point["assignment"].dump(), R"({"model.layers.11.self_attn":"nvfp4/nvfp4"})");
  EXPECT_EQ(point["scored_share"], 0.5);
  EXPECT_DOUBLE_EQ(point["objective_kl_nats"], 1.0);
  EXPECT_TRUE(point["objective_standard_error"].is_null());
}

TEST(Allocate, SaysHowSureItIs) {
  const SearchSpec spec = two_sites();
  ScoreTable table(spec);
  // Tokens 3 and 1. At 6.25 bits one site is nvfp4: site 0 for 2.0 in the first sequence and 0.1 in
  // the second beside 0.3, 0.1 of site 1 in fp8.
  table.add({table.units()[0], {0.1, 2.0, 0.3, 3.0}, {3}, {}});
  table.add({table.units()[1], {0.1, 0.1, 0.1, 0.9}, {1}, {}});
  AllocateOptions options;
  options.confidence = ConfidenceOptions();
  const auto answer = allocate("s", spec, fingerprint(spec), table, 6.25, options);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  // Sums 2.3 and 0.2: 2.5/4 = 0.625. Residuals 2.3 − 1.875 and 0.2 − 0.625: √(2·2·0.425²)/4.
  EXPECT_DOUBLE_EQ((*answer)["objective_kl_nats"], 0.625);
  EXPECT_NEAR((*answer)["objective_standard_error"], 0.2125, 1e-15);
  const Json& confidence = (*answer)["confidence"];
  EXPECT_EQ(confidence["sequences"], 2);
  EXPECT_EQ(confidence["resamples"], 200);
  // Site 0 in nvfp4 beats site 1 in nvfp4 in either sequence, so in every resample.
  EXPECT_EQ(confidence["stability"]["model.layers.1.self_attn"], 1.0);
  EXPECT_EQ(confidence["undecided"], Json::array());
  // Resamples are of twice the first (2.3/3), both (0.625) or twice the second (0.2).
  EXPECT_DOUBLE_EQ(confidence["objective_interval"][0], 0.2);
  EXPECT_DOUBLE_EQ(confidence["objective_interval"][1], 2.3 / 3);
  EXPECT_FALSE(answer->contains("smoothed_objective_kl_nats"));
}

TEST(Allocate, OneSequenceGivesNoErrorsAndSaysSo) {
  SearchSpec spec = two_sites();
  spec.sequences = 1;
  ScoreTable table(spec);
  table.add({table.units()[0], {0.3, 0.9, 0.6, 3.0}, {3}, {}});
  AllocateOptions options;
  options.confidence = ConfidenceOptions();
  const auto answer = allocate("s", spec, fingerprint(spec), table, 6.25, options);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE((*answer)["objective_standard_error"].is_null());
  EXPECT_EQ((*answer)["confidence"]["sequences"], 1);
  EXPECT_EQ((*answer)["confidence"].count("stability"), 0u);
  EXPECT_NE((*answer)["confidence"]["note"].get<std::string>().find("one sequence"),
            std::string::npos);
}

// Site 0 scores 0.9 with fp8 and 0.3 with nvfp4 in one sequence of 3 tokens: smoothed to 0.6 each,
// so that at 6.25 bits its fp8 no longer looks worse than its nvfp4.
TEST(Allocate, SmoothingIsAskedForAndKeepsWhatWasMeasured) {
  SearchSpec spec = two_sites();
  spec.sequences = 1;
  ScoreTable table(spec);
  table.add({table.units()[0], {0.9, 0.3, 0.6, 3.0}, {3}, {}});
  const auto answer = allocate("s", spec, fingerprint(spec), table, 6.25, {.smooth = true});
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ((*answer)["sites"][0]["candidate"], "nvfp4/nvfp4");
  EXPECT_DOUBLE_EQ((*answer)["sites"][0]["kl_nats_per_token"], 0.1);
  EXPECT_DOUBLE_EQ((*answer)["sites"][0]["smoothed_kl_nats_per_token"], 0.2);
  EXPECT_DOUBLE_EQ((*answer)["objective_kl_nats"], 0.3);
  EXPECT_DOUBLE_EQ((*answer)["smoothed_objective_kl_nats"], 0.4);
  ScoreTable empty(spec);
  EXPECT_EQ(allocate("s", spec, fingerprint(spec), empty, 6.25, {.partial = true, .smooth = true})
                .error()
                .code,
            ErrorCode::kUnavailable);
}

TEST(Allocate, OptionsAreThoseOfTheMessage) {
  const Json header = {{"pins", {{"a", "bf16"}}},
                       {"scores", true},
                       {"smooth", true},
                       {"confidence", {{"resamples", 7}, {"seed", 3}, {"threshold", 0.9}}}};
  const auto options = allocate_options(header, "assignment");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(to_json(*options), [&] {
    Json all = header;
    all["partial"] = false;
    return all;
  }());
  EXPECT_EQ(allocate_options({{"confidence", true}}, "a")->confidence->resamples, 200);
  EXPECT_FALSE(allocate_options({{"confidence", false}}, "a")->confidence.has_value());
  EXPECT_FALSE(allocate_options(Json::object(), "a")->confidence.has_value());
  const auto field = [](const Json& json) { return allocate_options(json, "a").error().field; };
  EXPECT_EQ(field({{"confidence", "yes"}}), "a.confidence");
  EXPECT_EQ(field({{"confidence", {{"resamples", 0}}}}), "resamples");
  EXPECT_EQ(field({{"confidence", {{"resamples", 1.5}}}}), "a.confidence.resamples");
  EXPECT_EQ(field({{"confidence", {{"threshold", 2}}}}), "threshold");
  EXPECT_EQ(field({{"confidence", {{"seed", -1}}}}), "a.confidence.seed");
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
