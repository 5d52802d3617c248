#include "coordinator/channel.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <utility>

namespace bitalloc {
namespace {

constexpr int kMessagesPerTurn = 256;  // then timers and the store get their turn

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

}  // namespace

Status check_endpoint(const std::string& endpoint, const std::string& flag) {
  if (endpoint.starts_with("ipc://") && endpoint.size() > 6) return {};
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with("tcp://") || colon <= 6) {
    return invalid_argument(fmt::format("{} '{}' is not an endpoint", flag, endpoint), flag,
                            "give ipc:///path/to/socket or tcp://127.0.0.1:port");
  }
  if (is_loopback(endpoint.substr(6, colon - 6))) return {};
  return invalid_argument(
      fmt::format("{} '{}' can be reached from other machines, which needs CURVE keys", flag,
                  endpoint),
      flag, "this release listens at ipc:// and at tcp:// of the loopback only");
}

Channel::Channel(boost::asio::io_context& loop, ZmqContext& context, Handler handler)
    : loop_(loop),
      socket_(context, Socket::Kind::kRouter),
      descriptor_(loop),
      handler_(std::move(handler)) {}

Channel::~Channel() {
  if (descriptor_.is_open()) descriptor_.release();
}

Status Channel::bind(const std::string& endpoint) {
  BA_RETURN_IF_ERROR(socket_.bind(endpoint));
  descriptor_.assign(socket_.file_descriptor());
  wait();
  drain_soon();
  return {};
}

void Channel::send(const wire::Message& message, const std::string& peer) {
  const Status sent = socket_.send(message, peer);
  if (!sent.ok()) spdlog::debug("{} lost: {}", message.type, sent.error().message);
  drain_soon();  // ZMQ_FD is edge-triggered: a send may have eaten the edge of a message
}

void Channel::wait() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [this](const boost::system::error_code& error) {
                           if (error) return;  // shutting down
                           drain();
                           wait();
                         });
}

void Channel::drain_soon() {
  if (std::exchange(drain_posted_, true)) return;
  boost::asio::post(loop_, [this] {
    drain_posted_ = false;
    drain();
  });
}

void Channel::drain() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    Result<std::optional<Socket::Received>> received = socket_.receive();
    if (!received.ok()) {
      spdlog::error("{}", received.error().message);
      return;
    }
    if (!received->has_value()) return;
    handler_(std::move(**received));
  }
  drain_soon();
}

}  // namespace bitalloc
