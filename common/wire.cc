#include "common/wire.h"

#include "common/json_text.h"

namespace bitalloc::wire {
namespace {

constexpr size_t kFixedFrames = 5;  // delimiter, version, type, correlation id, header
constexpr size_t kMaxNameBytes = 128;

// Values of a JSON text, give or take one a list: a short header must not become a large tree.
size_t count_values(std::string_view json) {
  size_t count = 1;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') {
      in_text = !in_text;
    } else if (in_text) {
      i += c == '\\';  // whatever follows is no end
    } else {
      count += c == ',' || c == '[' || c == '{';
    }
  }
  return count;
}

Status check_sizes(const std::vector<std::string_view>& frames) {
  if (frames[2].size() > kMaxNameBytes || frames[3].size() > kMaxNameBytes) {
    return invalid_argument("type or correlation id is longer than 128 bytes", "type");
  }
  if (frames[4].size() > kMaxHeaderBytes) {
    return resource_exhausted(
        fmt::format("the header has {} bytes; the limit is {}", frames[4].size(), kMaxHeaderBytes),
        "header");
  }
  if (const size_t count = count_values(frames[4]); count > kMaxHeaderValues) {
    return resource_exhausted(
        fmt::format("the header has {} values; the limit is {}", count, kMaxHeaderValues),
        "header");
  }
  for (size_t i = kFixedFrames; i < frames.size(); ++i) {
    if (frames[i].size() > kMaxBlobBytes) {
      return resource_exhausted(
          fmt::format("a blob has {} bytes; the limit is {}", frames[i].size(), kMaxBlobBytes),
          "blob");
    }
  }
  return {};
}

std::string header_text(const Message& message) {
  std::string text = message.header.is_null() ? "{}" : json_text(message.header);
  if (message.more_fields.empty()) return text;
  text.back() = text.size() > 2 ? ',' : ' ';
  return text + message.more_fields + '}';
}

}  // namespace

std::vector<std::string> encode(const Message& message) {
  std::vector<std::string> frames = {"", std::string(kVersion), message.type,
                                     message.correlation_id, header_text(message)};
  frames.insert(frames.end(), message.blobs.begin(), message.blobs.end());
  return frames;
}

Result<Message> decode(const std::vector<std::string_view>& frames, Message* partial) {
  Message message;
  if (frames.size() >= kFixedFrames) {
    message.type = std::string(frames[2].substr(0, kMaxNameBytes));
    message.correlation_id = std::string(frames[3].substr(0, kMaxNameBytes));
  }
  if (partial != nullptr) *partial = message;
  if (frames.size() < kFixedFrames || frames.size() > kMaxFrames || !frames[0].empty()) {
    return invalid_argument(fmt::format("{} frames are not a message of {} to {}", frames.size(),
                                        kFixedFrames, kMaxFrames),
                            "frames");
  }
  if (frames[1] != kVersion) {
    return unsupported(fmt::format("protocol version '{}' is not spoken here; this is {}",
                                   frames[1].substr(0, 16), kVersion),
                       "version", "use client, coordinator and worker of one release");
  }
  BA_RETURN_IF_ERROR(check_sizes(frames));
  BA_ASSIGN_OR_RETURN(message.header, parse_json(frames[4], "header of " + message.type));
  if (!message.header.is_object()) {
    return invalid_argument("the header is not an object", "header");
  }
  for (size_t i = kFixedFrames; i < frames.size(); ++i) message.blobs.emplace_back(frames[i]);
  return message;
}

Message ok_reply(const Message& request, Json header) {
  return {"ok", request.correlation_id, std::move(header), {}};
}

Message error_reply(const Message& request, const Error& error) {
  return {"error", request.correlation_id, error_to_json(error), {}};
}

Error error_of(const Message& message) { return error_from_json(message.header); }

}  // namespace bitalloc::wire
