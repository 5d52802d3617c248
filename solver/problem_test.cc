#include "solver/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace bitalloc {
namespace {

Problem good() { return {{{4.5, 8}, {4.5, 8}}, {{1, 0}, {1, 0}}, {2, 2}}; }

std::string fault(const Problem& problem) {
  const Status status = validate(problem);
  if (status.ok()) {
    return "none";
  }
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.error().message.find(status.error().field), std::string::npos);
  return status.error().field;
}

TEST(Problem, NamesTheEntryAtFault) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(fault(good()), "none");
  Problem p = good();
  p.score[1][0] = nan;
  EXPECT_EQ(fault(p), "score[1][0]");
  p = good();
  p.score[0][1] = -infinity;
  EXPECT_EQ(fault(p), "score[0][1]");
  p = good();
  p.score[0][1] = 1e300;
  EXPECT_EQ(fault(p), "score[0][1]");
  p = good();
  p.bits[1][1] = infinity;
  EXPECT_EQ(fault(p), "bits[1][1]");
  p.bits[1][1] = -1;
  EXPECT_EQ(fault(p), "bits[1][1]");
  for (const double width : {0.0, -1.0, nan, infinity}) {
    p = good();
    p.width[1] = width;
    EXPECT_EQ(fault(p), "width[1]");
  }
}

TEST(Problem, RefusesEmptyAndRaggedShapes) {
  EXPECT_EQ(fault({}), "width");
  Problem p = good();
  p.bits.pop_back();
  EXPECT_EQ(fault(p), "bits");
  p = good();
  p.score.pop_back();
  EXPECT_EQ(fault(p), "score");
  p = good();
  p.score[1].pop_back();
  EXPECT_EQ(fault(p), "score[1]");
  p = good();
  p.bits[0].clear();
  EXPECT_EQ(fault(p), "bits[0]");
}

TEST(Problem, EffectiveBitsWeighByWidth) {
  const Problem p{{{4, 8}, {4, 8}}, {{3, 1}, {-5, 2}}, {3, 1}};
  EXPECT_EQ(effective_bits_of(p, {1, 0}), 7);  // (3·8 + 1·4) / 4
  EXPECT_EQ(objective_of(p, {1, 0}), -4);
}

}  // namespace
}  // namespace bitalloc
