// A message as frames. The input: frames, each behind its length (two bytes, little-endian); the
// last may be cut short.
#include "common/wire.h"

#include <vector>

#include "tests/fuzz/target.h"

namespace {

std::vector<std::string_view> frames_of(std::string_view input) {
  std::vector<std::string_view> frames;
  while (input.size() >= 2) {
    const size_t length =
        static_cast<unsigned char>(input[0]) + 256 * static_cast<unsigned char>(input[1]);
    frames.push_back(input.substr(2, length));
    input.remove_prefix(2 + frames.back().size());
  }
  return frames;
}

}  // namespace

bool bitalloc::fuzz::accepts(std::string_view input) {
  wire::Message partial;
  const auto message = wire::decode(frames_of(input), &partial);
  if (!message.ok()) {
    const auto reply = wire::encode(wire::error_reply(partial, message.error()));
    const auto decoded = wire::decode({reply.begin(), reply.end()});
    BA_CHECK(decoded.ok() && decoded->type == "error", "an error reply that nobody can read");
    return false;
  }
  const std::vector<std::string> frames = wire::encode(*message);
  const auto again = wire::decode({frames.begin(), frames.end()});
  BA_CHECK(again.ok(), "encode gave what decode refuses: " + again.error().message);
  BA_CHECK(again->type == message->type && again->correlation_id == message->correlation_id &&
               again->header == message->header && again->blobs == message->blobs,
           "another message than went in");
  return true;
}
