#include "common/json_text.h"

#include <gtest/gtest.h>

#include "common/wire.h"

namespace bitalloc {
namespace {

TEST(JsonText, BytesThatAreNotUtf8AreReplaced) {
  const std::string text = json_text({{"path", "a\xff"}});
  EXPECT_EQ(text, "{\"path\":\"a\xEF\xBF\xBD\"}");  // U+FFFD, the replacement character
  EXPECT_EQ(json_text({{"a", 1}}, 2), "{\n  \"a\": 1\n}");
}

// One message with a byte of no encoding ended the coordinator: its error reply quoted the byte.
TEST(JsonText, AnErrorReplyMayQuoteAnything) {
  wire::Message partial;
  const auto decoded = wire::decode({"", "\xff\xfe", "t\xff", "c", "{}"}, &partial);
  ASSERT_FALSE(decoded.ok());
  const auto frames = wire::encode(wire::error_reply(partial, decoded.error()));
  EXPECT_TRUE(wire::decode({frames.begin(), frames.end()}).ok());
  const auto bad_header = wire::decode({"", "BA1", "t", "c", "{\"id\":\"\xff\"}"}, &partial);
  ASSERT_FALSE(bad_header.ok());
  EXPECT_FALSE(wire::encode(wire::error_reply(partial, bad_header.error())).empty());
}

}  // namespace
}  // namespace bitalloc
