#include "common/status.h"

#include <gtest/gtest.h>

namespace bitalloc {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return invalid_argument("odd", "x");
  return x / 2;
}

Result<int> quarter(int x) {
  BA_ASSIGN_OR_RETURN(const int once, half(x));
  return half(once);
}

TEST(Status, ErrorsTravelThroughTheMacros) {
  EXPECT_EQ(*quarter(12), 3);
  ASSERT_FALSE(quarter(6).ok());
  EXPECT_EQ(quarter(6).error().field, "x");
  EXPECT_EQ(quarter(6).error().code, ErrorCode::kInvalidArgument);
}

TEST(Status, CodesKeepTheirNames) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    EXPECT_EQ(error_code_from_name(error_code_name(code)), code);
  }
  EXPECT_STREQ(error_code_name(ErrorCode::kNotFound), "not_found");
  EXPECT_EQ(error_code_from_name("no such code"), ErrorCode::kInternal);
}

TEST(Status, ContextGoesInFront) {
  EXPECT_EQ(not_found("gone").with_context("file x").message, "file x: gone");
}

TEST(StatusDeathTest, ReadingTheValueOfAnErrorIsCaught) {
  EXPECT_ANY_THROW(half(1).value());  // std::bad_variant_access
  EXPECT_DEATH(BA_CHECK(false, "why"), "why");
}

}  // namespace
}  // namespace bitalloc
