#include "common/protocol.h"

#include <gtest/gtest.h>

namespace bitalloc {
namespace {

TEST(Protocol, TheNewestThatBothSpeakIsChosen) {
  EXPECT_EQ(*choose_protocol({{"protocol", {1, 2, 3}}}, "client"), 1);
  EXPECT_EQ(*choose_protocol({{"protocol", spoken_protocols()}}, "client"), kNewestProtocol);
  EXPECT_EQ(*choose_protocol(Json::object(), "client"), 1);  // from before there was a choice
}

TEST(Protocol, ARefusalSaysWhoMustBeUpdated) {
  const auto newer = choose_protocol({{"protocol", {98, 99}}}, "worker w");
  ASSERT_FALSE(newer.ok());
  EXPECT_EQ(newer.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(newer.error().message.find("worker w speaks protocol 98, 99"), std::string::npos);
  EXPECT_EQ(newer.error().hint, "update the coordinator");
  EXPECT_EQ(choose_protocol({{"protocol", {0}}}, "worker w").error().hint, "update the worker w");
}

TEST(Protocol, AnOfferThatIsNoneIsRefused) {
  for (const Json& offer : {Json("1"), Json::array(), Json({{"a", 1}})}) {
    EXPECT_EQ(choose_protocol({{"protocol", offer}}, "client").error().code,
              ErrorCode::kInvalidArgument)
        << offer;
  }
}

}  // namespace
}  // namespace bitalloc
