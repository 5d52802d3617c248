#include "solver/solve_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace bitalloc {
namespace {

constexpr const char* kGood =
    R"({"bits": [[4.5, 8], [4.5, 8]], "width": [1024, 1024], "score": [[1, 0], [2, 0.5]],
        "budgets": [4.5, 6.25, 8], "note": "ignored"})";

TEST(SolveFile, SolvesEveryBudgetInOrder) {
  const auto file = parse_solve_file(kGood);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto solutions = solve_budgets(*file);
  ASSERT_TRUE(solutions.ok());
  const auto list = nlohmann::json::parse(solutions_to_json(*file, *solutions));
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["choice"], (std::vector<int>{0, 0}));
  EXPECT_EQ(list[1]["choice"], (std::vector<int>{0, 1}));  // gains 1.5, the other site 1
  EXPECT_EQ(list[1]["budget"], 6.25);
  EXPECT_EQ(list[1]["objective"], 1.5);
  EXPECT_EQ(list[1]["effective_bits"], 6.25);
  EXPECT_EQ(list[1]["proven_optimal"], true);
  EXPECT_EQ(list[1]["gap"], 0);
  EXPECT_GE(list[1]["solve_ms"].get<double>(), 0);
  EXPECT_EQ(list[2]["choice"], (std::vector<int>{1, 1}));
}

TEST(SolveFile, OneInfeasibleBudgetFailsTheCallAndIsNamed) {
  auto file = parse_solve_file(kGood);
  ASSERT_TRUE(file.ok());
  file->budgets = {5, 4};
  const auto solutions = solve_budgets(*file);
  ASSERT_FALSE(solutions.ok());
  EXPECT_EQ(solutions.error().code, ErrorCode::kInfeasible);
  EXPECT_EQ(solutions.error().field, "budgets[1]");
  EXPECT_THAT(solutions.error().message, ::testing::HasSubstr("4.5 … 8 bits"));
}

struct Bad {
  const char* text;
  const char* field;
};

class BadFile : public ::testing::TestWithParam<Bad> {};

TEST_P(BadFile, IsRefusedByName) {
  const auto file = parse_solve_file(GetParam().text);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file.error().field, GetParam().field);
}

INSTANTIATE_TEST_SUITE_P(
    Inputs, BadFile,
    ::testing::Values(
        Bad{"{", ""}, Bad{"[]", ""}, Bad{"{}", "bits"},
        Bad{R"({"bits": [[4]], "width": [1], "score": [[1]]})", "budgets"},
        Bad{R"({"bits": [[4]], "width": [1], "score": [["x"]], "budgets": [4]})", "score[0][0]"},
        Bad{R"({"bits": [[4], 5], "width": [1], "score": [[1]], "budgets": [4]})", "bits[1]"},
        Bad{R"({"bits": 4, "width": [1], "score": [[1]], "budgets": [4]})", "bits"},
        Bad{R"({"bits": [[4]], "width": [0], "score": [[1]], "budgets": [4]})", "width[0]"},
        Bad{R"({"bits": [[4]], "width": [1], "score": [[null]], "budgets": [4]})", "score[0][0]"},
        Bad{R"({"bits": [[4]], "width": [1], "score": [[1e999]], "budgets": [4]})", ""},
        Bad{R"({"bits": [[4, 5]], "width": [1], "score": [[1]], "budgets": [4]})", "score[0]"},
        Bad{R"({"bits": [[4]], "width": [1], "score": [[1]], "budgets": []})", "budgets"},
        Bad{R"({"bits": [[4]], "width": [1], "score": [[1]], "budgets": [true]})", "budgets[0]"}));

TEST(SolveFile, MisspeltKeysAreRefusedByName) {
  const auto file =
      parse_solve_file(R"({"bits": [[4, 8]], "width": [1], "score": [[1, 0]], "budgets": [8],
                           "exclud": []})");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().field, "exclud");
  EXPECT_NE(file.error().message.find("\"exclude\""), std::string::npos);
}

}  // namespace
}  // namespace bitalloc
