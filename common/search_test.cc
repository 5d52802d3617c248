// Spec, plan, score table, fingerprint and checkpoint: a search without service or model.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "common/checkpoint.h"
#include "common/files.h"
#include "common/sha256.h"
#include "common/tokens.h"

namespace bitalloc {
namespace {

SearchSpec small_spec() {
  SearchSpec spec;
  spec.model = {"/models/m", "m", "llama", "w", "c", 3, 100};
  for (int i = 0; i < 3; ++i) {
    spec.sites.push_back({"model.layers." + std::to_string(i) + ".self_attn", i, 64, 64});
  }
  spec.candidates = {*parse_candidate("fp8"), *parse_candidate("nvfp4")};
  spec.sequences = 5;
  spec.length = 4;
  spec.batch_sequences = 2;
  spec.sites_per_unit = 2;
  spec.tokens_sha256 = "t";
  return spec;
}

UnitResult result_of(const SearchSpec& spec, const UnitId& unit, double first = 1.0) {
  UnitResult result;
  result.unit = unit;
  const int64_t sequences = spec.batch_size(unit.batch);
  result.sums.resize((unit.row_end - unit.row_begin) * spec.num_columns() * sequences *
                     metrics_per_sequence(spec));
  for (size_t i = 0; i < result.sums.size(); ++i)
    result.sums[i] = first + 0.1 * static_cast<double>(i);
  result.tokens.assign(sequences, 4);
  return result;
}

TEST(Tokens, Sha256IsSha256) {  // FIPS 180-2, appendix B.1
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Tokens, BadTokensAreNamed) {
  TokenSet tokens{2, 2, {1, 2, 3, 100}, {1, 1, 1, 1}};
  EXPECT_TRUE(validate(tokens, 101, "tokens.safetensors").ok());
  const Status beyond = validate(tokens, 100, "tokens.safetensors");
  ASSERT_FALSE(beyond.ok());
  EXPECT_NE(beyond.error().message.find("input_ids[1, 1] is 100"), std::string::npos);
  EXPECT_NE(beyond.error().message.find("tokens.safetensors"), std::string::npos);
  tokens.input_ids[0] = -1;
  EXPECT_FALSE(validate(tokens, 101, "t").ok());
  EXPECT_FALSE(validate(TokenSet{}, 101, "t").ok());
  EXPECT_FALSE(validate(TokenSet{1, 2, {1, 1}, {0, 0}}, 101, "t").ok());
  EXPECT_FALSE(validate(TokenSet{1, 2, {1, 1}, {1, 2}}, 101, "t").ok());
}

TEST(Tokens, BlobsComeBackAndHashesSeeEverything) {
  const TokenSet tokens{2, 2, {1, 2, 3, 4}, {1, 1, 1, 0}};
  const auto back = tokens_from_blobs(2, 2, ids_to_blob(tokens), mask_to_blob(tokens));
  EXPECT_EQ(tokens_sha256(*back), tokens_sha256(tokens));
  TokenSet other = tokens;
  other.mask[3] = 1;
  EXPECT_NE(tokens_sha256(other), tokens_sha256(tokens));
  other = {1, 4, tokens.input_ids, tokens.mask};
  EXPECT_NE(tokens_sha256(other), tokens_sha256(tokens));
  EXPECT_FALSE(tokens_from_blobs(2, 2, ids_to_blob(tokens), "123").ok());
  EXPECT_EQ(slice(tokens, 1, 2).input_ids, (std::vector<int32_t>{3, 4}));
}

TEST(SearchSpec, JsonKeepsEveryField) {
  SearchSpec spec = small_spec();
  spec.disabled_sites = {"model.layers.7.self_attn"};
  spec.effective_bits = 5.4;
  spec.recipe = "r";
  const auto back = search_spec_from_json(to_json(spec));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(to_json(*back), to_json(spec));
  EXPECT_EQ(fingerprint(*back).sha256, fingerprint(spec).sha256);
}

TEST(SearchSpec, BadFieldsAreNamed) {
  const auto refused = [](auto change) {
    SearchSpec spec = small_spec();
    change(spec);
    const auto back = search_spec_from_json(to_json(spec));
    return back.ok() ? std::string("accepted") : back.error().field;
  };
  EXPECT_EQ(refused([](SearchSpec& s) { s.dtype = "float8"; }), "dtype");
  EXPECT_EQ(refused([](SearchSpec& s) { s.sequences = 0; }), "sequences");
  EXPECT_EQ(refused([](SearchSpec& s) { s.sites[1] = s.sites[0]; }), "sites");
  EXPECT_EQ(refused([](SearchSpec& s) { s.sites.clear(); }), "sites");
  EXPECT_EQ(refused([](SearchSpec& s) { s.candidates.push_back(s.candidates[0]); }), "candidates");
  EXPECT_EQ(refused([](SearchSpec& s) { s.sites[0].layer = 3; }), "sites.layer");
  EXPECT_EQ(refused([](SearchSpec& s) { s.calibration_sequences = 2; }), "calibration_sequences");
}

TEST(SearchSpec, PairBitsWeighWidths) {
  const Site equal{"s", 0, 64, 64};
  EXPECT_EQ(candidate_bits(equal, *parse_candidate("fp8/nvfp4")), 6.25);  // (8 + 4.5) / 2
  const Site unequal{"s", 0, 96, 32};
  EXPECT_EQ(candidate_bits(unequal, *parse_candidate("fp8/nvfp4")), (96 * 8 + 32 * 4.5) / 128);
}

TEST(Plan, CoversEveryTrialOnceAndNamesComeBack) {
  const SearchSpec spec = small_spec();
  std::set<std::pair<int64_t, int64_t>> seen;  // batch, row
  for (const UnitId& unit : plan_units(spec)) {
    EXPECT_EQ(*parse_unit_name(unit_name(unit)), unit);
    for (int64_t row = unit.row_begin; row < unit.row_end; ++row) {
      EXPECT_TRUE(seen.insert({unit.batch.value, row}).second);
    }
  }
  EXPECT_EQ(seen.size(), 3u * 3u);  // ⌈5/2⌉ batches × 3 sites
  EXPECT_EQ(plan_units(spec).size(), 3u * 2u);
  for (const char* name :
       {"", "score/1", "score/1/2-2", "score/-1/0-1", "score/1/0-1x", "calibrate/"}) {
    EXPECT_FALSE(parse_unit_name(name).ok()) << name;
  }
}

TEST(Plan, LayoutFindsEveryUnitOfThePlanAndNoOther) {
  SearchSpec spec = small_spec();  // 3 sites, 2 a unit: rows 2-3 and 0-2 of each batch
  for (const bool calibrated : {false, true}) {
    if (calibrated) {
      spec.candidates.push_back(*parse_candidate("nvfp4[scale=calibrated]"));
      spec.calibration_sequences = 3;
      spec.calibration_length = 4;
    }
    const PlanLayout layout(spec);
    const auto units = plan_units(spec);
    ASSERT_EQ(layout.num_units(), units.size());
    EXPECT_EQ(layout.batch_begin(layout.num_batches()), units.size());
    for (size_t slot = 0; slot < units.size(); ++slot) {
      EXPECT_EQ(layout.slot(units[slot]), slot);
      const size_t begin = layout.batch_begin(layout.batch(slot));
      EXPECT_LE(begin, slot);
      EXPECT_EQ(units[begin].batch, units[slot].batch);
      EXPECT_EQ(units[begin].kind, units[slot].kind);
      EXPECT_TRUE(begin == 0 || layout.batch(begin - 1) != layout.batch(begin));
    }
    for (const char* name : {"score/0/0-1", "score/0/1-3", "score/0/2-4", "score/3/0-2"}) {
      EXPECT_FALSE(layout.slot(*parse_unit_name(name))) << name;
    }
    EXPECT_EQ(layout.slot(*parse_unit_name("calibrate/0")).has_value(), calibrated);
    EXPECT_FALSE(layout.slot(*parse_unit_name("calibrate/2")));
  }
}

TEST(Plan, CalibrationComesFirst) {
  SearchSpec spec = small_spec();
  spec.candidates.push_back(*parse_candidate("nvfp4[scale=calibrated]"));
  spec.calibration_sequences = 3;
  spec.calibration_length = 4;
  const auto units = plan_units(spec);
  EXPECT_EQ(units[0].kind, UnitKind::kCalibrate);
  EXPECT_EQ(units[1].kind, UnitKind::kCalibrate);
  EXPECT_EQ(units.size(), 2u + 6u);
}

TEST(ScoreTable, FirstWriteWins) {
  const SearchSpec spec = small_spec();
  ScoreTable table(spec);
  const UnitId unit = table.units()[0];
  EXPECT_EQ(table.add(result_of(spec, unit)), ScoreTable::Added::kNew);
  EXPECT_EQ(table.add(result_of(spec, unit)), ScoreTable::Added::kDuplicate);
  EXPECT_EQ(table.add(result_of(spec, unit, 2.0)), ScoreTable::Added::kConflict);
  EXPECT_EQ(table.units_done(), 1);
  EXPECT_EQ(table.result(unit).sums[0], 1.0);
  EXPECT_FALSE(table.complete());
}

TEST(ScoreTable, HasAPlaceForEveryPlannedUnitAndNoOther) {
  for (const int64_t sites_per_unit : {1, 2, 3, 5}) {
    SearchSpec spec = small_spec();
    spec.sites_per_unit = sites_per_unit;
    spec.candidates.push_back(*parse_candidate("nvfp4[scale=calibrated]"));
    spec.calibration_sequences = 3;
    spec.calibration_length = 4;
    ScoreTable table(spec);
    for (const UnitId& unit : plan_units(spec)) {
      EXPECT_TRUE(table.planned(unit)) << unit_name(unit);
      EXPECT_FALSE(table.has(unit)) << unit_name(unit);
    }
    for (const UnitId& unit : {UnitId{UnitKind::kScore, BatchIndex(0), 0, 9},
                               {UnitKind::kScore, BatchIndex(9), 0, 1},
                               {UnitKind::kScore, BatchIndex(-1), 0, 1},
                               {UnitKind::kScore, BatchIndex(0), 7, 8},
                               {UnitKind::kCalibrate, BatchIndex(2), 0, 0}}) {
      EXPECT_FALSE(table.planned(unit)) << unit_name(unit);
    }
  }
}

TEST(ScoreTable, CopyKeepsItsResultsWhenTheOriginalGoesOn) {
  const SearchSpec spec = small_spec();
  ScoreTable table(spec);
  table.add(result_of(spec, table.units()[0]));
  const ScoreTable copy = table;
  table.add(result_of(spec, table.units()[1]));
  EXPECT_EQ(copy.units_done(), 1);
  EXPECT_TRUE(copy.has(table.units()[0]));
  EXPECT_FALSE(copy.has(table.units()[1]));
}

TEST(ScoreTable, MeanAndStandardErrorByHand) {
  SearchSpec spec = small_spec();
  spec.sites.resize(1);
  spec.candidates.resize(1);
  spec.sequences = 3;
  spec.batch_sequences = 2;
  ScoreTable table(spec);
  UnitResult first{{UnitKind::kScore, BatchIndex(0), 0, 1}, {2.0, 8.0}, {2, 4}, {}};
  UnitResult second{{UnitKind::kScore, BatchIndex(1), 0, 1}, {2.0}, {2}, {}};
  table.add(first);
  table.add(second);
  const Score score = table.score(0, CandidateIndex(0));
  // Σ = 12 over 8 tokens: 1.5. Residuals 2 − 3, 8 − 6, 2 − 3: squares 1 + 4 + 1 = 6.
  EXPECT_EQ(score.kl_sum_nats, 12.0);
  EXPECT_EQ(score.tokens, 8);
  EXPECT_EQ(score.kl_nats_per_token, 1.5);
  EXPECT_DOUBLE_EQ(*score.standard_error, std::sqrt(3.0 / 2.0 * 6.0) / 8.0);
}

TEST(ScoreTable, GivesTheSumsOfEverySequenceOfARowAndColumn) {
  SearchSpec spec = small_spec();
  spec.sequences = 3;  // of two batches
  ScoreTable table(spec);
  // [rows of the unit][columns][sequences]
  table.add({{UnitKind::kScore, BatchIndex(1), 0, 2}, {50, 51, 52, 53}, {4}, {}});
  table.add(
      {{UnitKind::kScore, BatchIndex(0), 0, 2}, {10, 11, 12, 13, 14, 15, 16, 17}, {2, 3}, {}});
  table.add({{UnitKind::kScore, BatchIndex(0), 2, 3}, {20, 21, 22, 23}, {2, 3}, {}});
  const auto sums = [&](int64_t row, int64_t column) {
    return table.sequences(row, CandidateIndex(column)).sums;
  };
  EXPECT_EQ(sums(0, 1), (std::vector<double>{12, 13, 51}));
  EXPECT_EQ(sums(1, 0), (std::vector<double>{14, 15, 52}));
  EXPECT_EQ(sums(2, 1), (std::vector<double>{22, 23}));  // its second batch is not in
  EXPECT_EQ(table.sequences(1, CandidateIndex(1)).tokens, (std::vector<double>{2, 3, 4}));
}

TEST(ScoreTable, OneSequenceHasNoStandardError) {
  SearchSpec spec = small_spec();
  spec.sequences = 1;
  ScoreTable table(spec);
  for (const UnitId& unit : plan_units(spec)) table.add(result_of(spec, unit));
  EXPECT_FALSE(table.score(0, CandidateIndex(0)).standard_error.has_value());
}

TEST(ScoreTable, ResultsThatDoNotFitAreRefused) {
  const SearchSpec spec = small_spec();
  const UnitId unit = plan_units(spec)[0];
  EXPECT_TRUE(validate(result_of(spec, unit), spec).ok());
  UnitResult bad = result_of(spec, unit);
  bad.sums.pop_back();
  EXPECT_FALSE(validate(bad, spec).ok());
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity(), -1.0}) {
    bad = result_of(spec, unit);
    bad.sums[1] = value;
    EXPECT_FALSE(validate(bad, spec).ok()) << value;
  }
  bad = result_of(spec, unit);
  bad.tokens[0] = 5;  // longer than the sequence
  EXPECT_FALSE(validate(bad, spec).ok());
  bad = result_of(spec, unit);
  bad.unit.row_end = 9;
  EXPECT_FALSE(validate(bad, spec).ok());
  bad = result_of(spec, unit);
  bad.unit.batch = BatchIndex(3);
  EXPECT_FALSE(validate(bad, spec).ok());
}

TEST(ScoreTable, PackedResultsKeepEveryBit) {
  const SearchSpec spec = small_spec();
  UnitResult result = result_of(spec, plan_units(spec)[0], 1.0 / 3.0);
  const std::string bytes = pack(result);
  const auto back = unpack_unit_result(result.unit, bytes);
  EXPECT_EQ(back->sums, result.sums);
  EXPECT_EQ(back->tokens, result.tokens);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(unpack_unit_result(result.unit, std::string_view(bytes).substr(0, cut)).ok());
  }
}

TEST(ScoreTable, AmaxIsTheLargestOverCalibrationBatches) {
  SearchSpec spec = small_spec();
  EXPECT_EQ(ScoreTable(spec).amax(), std::vector<float>(6, 448.0f));
  spec.candidates.push_back(*parse_candidate("nvfp4[scale=calibrated]"));
  spec.calibration_sequences = 3;
  spec.calibration_length = 4;
  ScoreTable table(spec);
  EXPECT_FALSE(table.calibrated());
  table.add({{UnitKind::kCalibrate, BatchIndex(0), 0, 0}, {}, {}, {1, 2, 3, 4, 5, 6}});
  table.add({{UnitKind::kCalibrate, BatchIndex(1), 0, 0}, {}, {}, {2, 1, 9, 1, 1, 7}});
  EXPECT_TRUE(table.calibrated());
  EXPECT_EQ(table.amax(), (std::vector<float>{2, 2, 9, 4, 5, 7}));
}

TEST(Fingerprint, NamesEveryPartThatDiffers) {
  const SearchSpec spec = small_spec();
  const auto difference = [&](auto change) {
    SearchSpec other = spec;
    change(other);
    return differing_parts(fingerprint(spec), fingerprint(other));
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(difference([](SearchSpec& s) { s.model.weights_sha256 = "x"; }),
            Names{"model weights"});
  EXPECT_EQ(difference([](SearchSpec& s) { s.model.config_sha256 = "x"; }), Names{"model config"});
  EXPECT_EQ(difference([](SearchSpec& s) { s.tokens_sha256 = "x"; }), Names{"tokens"});
  EXPECT_EQ(difference([](SearchSpec& s) { s.dtype = "bfloat16"; }), Names{"dtype"});
  EXPECT_EQ(difference([](SearchSpec& s) { s.batch_sequences = 1; }), Names{"batching"});
  EXPECT_EQ(difference([](SearchSpec& s) { s.candidates.pop_back(); }), Names{"candidates"});
  EXPECT_EQ(difference([](SearchSpec& s) { s.candidates[1].k.encoding = Encoding::kModelopt; }),
            Names{"candidates"});
  EXPECT_EQ(difference([](SearchSpec& s) { s.sites.pop_back(); }), Names{"sites"});
  // What cannot change a score is not part of it.
  EXPECT_EQ(difference([](SearchSpec& s) { s.effective_bits = 7; }), Names{});
  EXPECT_EQ(difference([](SearchSpec& s) { s.model.path = "/elsewhere"; }), Names{});
}

// The text is written piece by piece; a JSON library that reads and writes it gives the same bytes.
TEST(Checkpoint, IsTheTextOfOneJsonObject) {
  const SearchSpec spec = small_spec();
  Checkpoint checkpoint{"id", spec, fingerprint(spec), ScoreTable(spec)};
  for (int done = 0; done < 3; ++done) {
    const std::string text = serialize(checkpoint);
    EXPECT_EQ(Json::parse(text).dump() + "\n", text);
    const UnitId unit = checkpoint.table.units()[static_cast<size_t>(done)];
    checkpoint.table.add(result_of(spec, unit, 1.0 / 3.0));
  }
}

TEST(Checkpoint, KeepsEveryBit) {
  const SearchSpec spec = small_spec();
  Checkpoint checkpoint{"id", spec, fingerprint(spec), ScoreTable(spec)};
  for (const UnitId& unit : plan_units(spec))
    checkpoint.table.add(result_of(spec, unit, 1.0 / 3.0));
  const std::string text = serialize(checkpoint);
  const auto back = parse_checkpoint(text, "file");
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(serialize(*back), text);
  EXPECT_TRUE(back->table.complete());
  for (const UnitId& unit : plan_units(spec)) {
    EXPECT_EQ(back->table.result(unit).sums, checkpoint.table.result(unit).sums);
  }
}

TEST(Checkpoint, AnAlteredOrCutFileIsRefused) {
  const SearchSpec spec = small_spec();
  Checkpoint checkpoint{"id", spec, fingerprint(spec), ScoreTable(spec)};
  checkpoint.table.add(result_of(spec, plan_units(spec)[0]));
  const std::string text = serialize(checkpoint);
  std::string altered = text;
  altered.replace(altered.find("1.1"), 3, "1.2");
  EXPECT_FALSE(parse_checkpoint(altered, "file").ok());
  EXPECT_FALSE(parse_checkpoint(text.substr(0, text.size() / 2), "file").ok());
  EXPECT_FALSE(parse_checkpoint("{}", "file").ok());
  EXPECT_FALSE(parse_checkpoint(std::string(100'000, '['), "file").ok());
}

// A unit outside the plan, or the same one twice, ended whoever read the file.
TEST(Checkpoint, UnitsThatDoNotBelongAreRefused) {
  const SearchSpec spec = small_spec();
  Checkpoint checkpoint{"id", spec, fingerprint(spec), ScoreTable(spec)};
  const UnitId unit = plan_units(spec)[0];
  checkpoint.table.add(result_of(spec, unit));
  const auto with_results = [&](auto change) {
    Json json = *parse_json(serialize(checkpoint), "file");
    json.erase("sha256");
    change(json["results"]);
    json["sha256"] = sha256_hex(json.dump());
    const auto parsed = parse_checkpoint(json.dump(), "file");
    return parsed.ok() ? std::string("accepted") : parsed.error().field;
  };
  EXPECT_EQ(with_results([](Json&) {}), "accepted");
  EXPECT_EQ(with_results([](Json& results) { results.push_back(results[0]); }), "results");
  EXPECT_EQ(with_results([&](Json& results) {
              UnitId shifted = unit;  // in range, but no unit of the plan
              shifted.row_begin -= 1;
              shifted.row_end -= 1;
              results[0]["unit"] = unit_name(shifted);
            }),
            "results");
}

TEST(Files, AtomicWriteReplaces) {
  const auto file = std::filesystem::path(testing::TempDir()) / "bitalloc_files_test";
  ASSERT_TRUE(write_file_atomically(file, "one").ok());
  ASSERT_TRUE(write_file_atomically(file, "two").ok());
  EXPECT_EQ(*read_file(file), "two");
  const std::filesystem::path link = file.string() + "_link";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(file, link);
  ASSERT_TRUE(write_file_atomically(link, "three").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(*read_file(file), "three");
  ASSERT_TRUE(write_file_atomically("/dev/null", "four").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  std::filesystem::remove(link);
  std::filesystem::remove(file);
  EXPECT_FALSE(read_file(file).ok());
  EXPECT_FALSE(write_file_atomically("/no such folder/x", "one").ok());
}

}  // namespace
}  // namespace bitalloc
