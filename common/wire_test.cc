#include "common/wire.h"

#include <gtest/gtest.h>
#include <zmq.h>

#include "common/zmq/socket.h"

namespace bitalloc {
namespace {

Result<wire::Message> decode_frames(const std::vector<std::string>& frames,
                                    wire::Message* partial = nullptr) {
  return wire::decode({frames.begin(), frames.end()}, partial);
}

TEST(Wire, MessagesComeBack) {
  const wire::Message message{"status", "7", {{"id", "x"}}, {std::string("\0\1", 2), ""}};
  const auto back = decode_frames(wire::encode(message));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->type, "status");
  EXPECT_EQ(back->correlation_id, "7");
  EXPECT_EQ(back->header["id"], "x");
  EXPECT_EQ(back->blobs, message.blobs);
}

TEST(Wire, MoreFieldsBecomePartOfTheHeader) {
  wire::Message message{"unit", "", {{"fence", 3}}, {}};
  message.more_fields = R"("spec":{"a":[1]},"b":"x")";
  EXPECT_EQ(decode_frames(wire::encode(message))->header,
            Json({{"fence", 3}, {"spec", {{"a", {1}}}}, {"b", "x"}}));
  message.header = Json::object();
  EXPECT_EQ(decode_frames(wire::encode(message))->header,
            Json({{"spec", {{"a", {1}}}}, {"b", "x"}}));
}

TEST(Wire, BadFramesAreRefusedButCanBeAnswered) {
  EXPECT_FALSE(decode_frames({}).ok());
  EXPECT_FALSE(decode_frames({"", "BA1", "t", "c"}).ok());
  EXPECT_FALSE(decode_frames({"", "BA1", "t", "c", "{"}).ok());
  EXPECT_FALSE(decode_frames({"", "BA1", "t", "c", "[]"}).ok());
  EXPECT_FALSE(decode_frames({"x", "BA1", "t", "c", "{}"}).ok());
  wire::Message partial;
  const auto other_version = decode_frames({"", "BA9", "t", "c", "{}"}, &partial);
  EXPECT_EQ(other_version.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(partial.correlation_id, "c");
}

TEST(Wire, LimitsAreKept) {
  EXPECT_EQ(decode_frames({"", "BA1", "t", "c", std::string(wire::kMaxHeaderBytes + 1, ' ')})
                .error()
                .code,
            ErrorCode::kResourceExhausted);
  EXPECT_FALSE(decode_frames({"", "BA1", std::string(129, 't'), "c", "{}"}).ok());
  EXPECT_FALSE(decode_frames(std::vector<std::string>(wire::kMaxFrames + 1, "")).ok());
  std::string deep = std::string(100, '[') + std::string(100, ']');
  EXPECT_FALSE(decode_frames({"", "BA1", "t", "c", "{\"a\":" + deep + "}"}).ok());
}

TEST(Wire, ALongCorrelationIdIsRefusedUnderItsFirstBytes) {
  wire::Message partial;
  const std::string huge(1 << 20, 'c');
  EXPECT_FALSE(decode_frames({"", "BA1", "t", huge, "{}"}, &partial).ok());
  EXPECT_EQ(partial.correlation_id, huge.substr(0, 128));
  std::vector<std::string> many(wire::kMaxFrames + 1, "");
  many[3] = "c";
  EXPECT_EQ(decode_frames(many, &partial).error().field, "frames");
  EXPECT_EQ(partial.correlation_id, "c") << "the refusal finds its way";
}

// 1 MiB of "[]," would be 350,000 values of some 40 bytes.
TEST(Wire, TheNumberOfValuesIsBounded) {
  const auto list_of = [](size_t count) {
    std::string text = "{\"a\":[0";
    for (size_t i = 1; i < count; ++i) text += ",0";
    return text + "]}";
  };
  EXPECT_TRUE(decode_frames({"", "BA1", "t", "c", list_of(190'000)}).ok());
  EXPECT_EQ(decode_frames({"", "BA1", "t", "c", list_of(210'000)}).error().code,
            ErrorCode::kResourceExhausted);
  // What stands in a text is no value, behind an escaped quote neither.
  const std::string text = "{\"a\":\"\\\"" + std::string(210'000, ',') + "\"}";
  EXPECT_TRUE(decode_frames({"", "BA1", "t", "c", text}).ok());
}

TEST(Wire, AnErrorOfAnotherProcessIsShortened) {
  std::string message;
  for (int i = 0; i < 5'000; ++i) message += "ä";
  const Error error = error_from_json({{"code", "internal"}, {"message", message}});
  EXPECT_LE(error.message.size(), 4'100u);
  EXPECT_NO_THROW(error_to_json(error).dump()) << "a character was cut in two";
}

TEST(Wire, ErrorsKeepCodeFieldAndHint) {
  const wire::Message request{"status", "7", {}, {}};
  const wire::Message reply = wire::error_reply(request, not_found("no search", "id", "list"));
  EXPECT_EQ(reply.correlation_id, "7");
  const Error error = wire::error_of(reply);
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_EQ(error.message, "no search");
  EXPECT_EQ(error.field, "id");
  EXPECT_EQ(error.hint, "list");
}

class Sockets : public testing::Test {
 protected:
  Sockets() : router_(context_, Socket::Kind::kRouter), dealer_(context_, Socket::Kind::kDealer) {
    endpoint_ = "ipc://" + testing::TempDir() + "bitalloc_wire_test.sock";
    EXPECT_TRUE(router_.bind(endpoint_).ok());
    EXPECT_TRUE(dealer_.connect(endpoint_).ok());
  }

  ZmqContext context_;
  std::string endpoint_;
  Socket router_;
  Socket dealer_;
};

TEST_F(Sockets, RequestAndReply) {
  ASSERT_TRUE(dealer_.send({"ping", "1", {{"a", 1}}, {"blob"}}).ok());
  ASSERT_TRUE(*router_.wait(5'000));
  const auto request = *router_.receive();
  ASSERT_TRUE(request && !request->error);
  EXPECT_EQ(request->message.blobs[0], "blob");
  ASSERT_TRUE(router_.send(wire::ok_reply(request->message), request->peer).ok());
  ASSERT_TRUE(*dealer_.wait(5'000));
  EXPECT_EQ((*dealer_.receive())->message.type, "ok");
  EXPECT_FALSE((*dealer_.receive()).has_value());
}

TEST_F(Sockets, SendingToAPeerThatIsNotThereIsAnError) {
  const Status sent = router_.send({"unit", "", {}, {}}, "nobody");
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code, ErrorCode::kUnavailable);
}

// Sent by hand: our own encoder makes no such message.
TEST_F(Sockets, AMessageOfManyFramesIsRefusedAndNotKept) {
  for (int i = 0; i < 20'000; ++i) {
    const std::string frame = i == 1 ? "BA1" : i == 0 ? "" : "x";
    const int more = i + 1 < 20'000 ? ZMQ_SNDMORE : 0;
    ASSERT_GE(zmq_send(dealer_.handle(), frame.data(), frame.size(), more), 0);
  }
  ASSERT_TRUE(*router_.wait(5'000));
  const auto received = *router_.receive();
  ASSERT_TRUE(received && received->error);
  EXPECT_EQ(received->error->field, "frames");
  ASSERT_TRUE(dealer_.send({"ping", "1", {}, {}}).ok());
  ASSERT_TRUE(*router_.wait(5'000));
  EXPECT_FALSE((*router_.receive())->error) << "the next message starts where it starts";
}

TEST_F(Sockets, ABadEndpointIsRefused) {
  EXPECT_FALSE(dealer_.connect("nonsense").ok());
  EXPECT_FALSE(router_.bind("nonsense").ok());
}

}  // namespace
}  // namespace bitalloc
