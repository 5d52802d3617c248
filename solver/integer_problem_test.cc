#include "solver/integer_problem.h"

#include <gtest/gtest.h>

namespace bitalloc {
namespace {

std::vector<std::int64_t> weights(const std::vector<Item>& items) {
  std::vector<std::int64_t> out;
  for (const Item& item : items) {
    out.push_back(item.weight);
  }
  return out;
}

// Differences of 1.75 and 3.5 bits over 2048 or 1024 elements: the unit is 1.75·1024.
TEST(IntegerProblem, DividesByTheCommonDivisor) {
  const Problem p{{{8, 4.5, 6.25}, {4.5, 6.25, 8}}, {{0, 2, 1}, {2, 1, 0}}, {2048, 1024}};
  const IntegerProblem integers = to_integers(p);
  EXPECT_TRUE(integers.exact_weights);
  EXPECT_EQ(weights(integers.all[0]), (std::vector<std::int64_t>{4, 0, 2}));
  EXPECT_EQ(weights(integers.all[1]), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(weights(integers.efficient[0]), (std::vector<std::int64_t>{0, 2, 4}));
  EXPECT_EQ(integers.max_weight, 6);
  EXPECT_EQ(capacity_of(integers, 4.5), 0);
  EXPECT_EQ(capacity_of(integers, 4.499), -1);
  EXPECT_EQ(capacity_of(integers, 4.5 + 1.75 * 1024 * 3 / 3072), 3);
  EXPECT_EQ(capacity_of(integers, 1e300), 6);
}

// 4.1875 = 134·8/256 is dyadic; 4.69 = 469/100 and 43/7 are not, yet both are short fractions.
TEST(IntegerProblem, DecimalAndThirdBitsAreExact) {
  const Problem p{{{4.1875, 4.69, 4.5 + 11.5 / 7}}, {{2, 1, 0}}, {1}};
  const IntegerProblem integers = to_integers(p);
  EXPECT_TRUE(integers.exact_weights);
  // Over the common denominator 2800: 11725, 13132, 17200; differences 1407 and 5475, divisor 3.
  EXPECT_EQ(weights(integers.all[0]), (std::vector<std::int64_t>{0, 469, 1825}));
}

TEST(IntegerProblem, DropsDominatedCandidates) {
  const Problem p{{{4, 6, 6, 8, 5}}, {{3, 2, 1, 1, 4}}, {1}};
  const IntegerProblem integers = to_integers(p);
  ASSERT_EQ(integers.efficient[0].size(), 2u);
  EXPECT_EQ(integers.efficient[0][0].candidate, 0);
  EXPECT_EQ(integers.efficient[0][1].candidate, 2);
  EXPECT_EQ(integers.efficient[0][0].score, 2);  // above the site's lowest
  EXPECT_EQ(integers.score_offset, 1);
}

TEST(IntegerProblem, HugeAndTinyWidthsStayInRange) {
  const Problem p{{{4.5, 8}, {4.5, 8}}, {{1, 0}, {1, 0}}, {1e18, 1e-3}};
  const IntegerProblem integers = to_integers(p);
  EXPECT_GE(capacity_of(integers, 8), 1);
  EXPECT_EQ(capacity_of(integers, 8), integers.max_weight);
}

}  // namespace
}  // namespace bitalloc
