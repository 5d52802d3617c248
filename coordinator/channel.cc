#include "coordinator/channel.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <utility>

namespace bitalloc {
namespace {

constexpr int kMessagesPerTurn = 256;  // then timers and the store get their turn
// Messages a peer that wait in either direction: what one peer can make us keep in memory. Clients
// ask and wait; workers have units, results and heartbeats on their way.
constexpr int kClientMessages = 128;
constexpr int kWorkerMessages = 1'000;
constexpr size_t kMaxListeners = 8;  // of one door

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

bool is_tcp(const std::string& endpoint) { return endpoint.starts_with("tcp://"); }

}  // namespace

Status check_endpoint(const std::string& endpoint, const std::string& flag, const DoorLock& lock) {
  if (endpoint.starts_with("ipc://") && endpoint.size() > 6) return {};
  const size_t colon = endpoint.rfind(':');
  if (!is_tcp(endpoint) || colon <= 6) {
    return invalid_argument(fmt::format("{} '{}' is not an endpoint", flag, endpoint), flag,
                            "give ipc:///path/to/socket or tcp://address:port");
  }
  const bool loopback = is_loopback(endpoint.substr(6, colon - 6));
  if (!lock.server_secret_key.empty() || (loopback && lock.plain_loopback)) return {};
  return invalid_argument(
      fmt::format("{} '{}' can be reached over the network, which needs keys", flag, endpoint),
      flag,
      loopback ? "give --server-key and --allow (`bitalloc keys --help`), or --plain-loopback to "
                 "trust every user of this machine"
               : "give --server-key and --allow (`bitalloc keys --help`)");
}

Channel::Listener::Listener(boost::asio::io_context& loop, ZmqContext& context, Door door)
    : socket(context, Socket::Kind::kRouter,
             door == Door::kClients ? kClientMessages : kWorkerMessages),
      descriptor(loop) {}

Channel::Channel(boost::asio::io_context& loop, ZmqContext& context, Door door, DoorLock lock,
                 Handler handler)
    : loop_(loop),
      context_(context),
      door_(door),
      lock_(std::move(lock)),
      handler_(std::move(handler)) {}

Channel::~Channel() {
  for (auto& listener : listeners_) {
    if (listener->descriptor.is_open()) listener->descriptor.release();
  }
}

Status Channel::bind(const std::string& endpoint) {
  BA_CHECK(listeners_.size() < kMaxListeners, "too many endpoints");
  auto listener = std::make_unique<Listener>(loop_, context_, door_);
  if (is_tcp(endpoint) && !lock_.server_secret_key.empty()) {
    BA_CHECK(lock_.access != nullptr, "keys without an allow-list");
    listener->socket.use_curve(CurveServer{lock_.server_secret_key, zap_domain(door_)});
    listener->locked = true;
  }
  BA_RETURN_IF_ERROR(listener->socket.bind(endpoint));
  listener->descriptor.assign(listener->socket.file_descriptor());
  listeners_.push_back(std::move(listener));
  wait(*listeners_.back());
  drain_soon(*listeners_.back());
  return {};
}

// Two sockets may use the same routing id: the first character tells them apart.
std::string Channel::peer_name(const Listener& listener, const std::string& routing_id) const {
  size_t index = 0;
  while (listeners_[index].get() != &listener) ++index;
  return static_cast<char>('0' + index) + routing_id;
}

void Channel::send(const wire::Message& message, const std::string& peer) {
  const size_t index = static_cast<size_t>(peer.at(0) - '0');
  BA_CHECK(index < listeners_.size(), "a peer of another channel");
  Listener& listener = *listeners_[index];
  const Status sent = listener.socket.send(message, peer.substr(1));
  if (!sent.ok()) spdlog::debug("{} lost: {}", message.type, sent.error().message);
  drain_soon(listener);  // ZMQ_FD is edge-triggered: a send may have eaten the edge of a message
}

void Channel::wait(Listener& listener) {
  listener.descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                                 [this, &listener](const boost::system::error_code& error) {
                                   if (error) return;  // shutting down
                                   drain(listener);
                                   wait(listener);
                                 });
}

void Channel::drain_soon(Listener& listener) {
  if (std::exchange(listener.drain_posted, true)) return;
  boost::asio::post(loop_, [this, &listener] {
    listener.drain_posted = false;
    drain(listener);
  });
}

void Channel::drain(Listener& listener) {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    Result<std::optional<Socket::Received>> received = listener.socket.receive();
    if (!received.ok()) {
      spdlog::error("{}", received.error().message);
      return;
    }
    if (!received->has_value()) return;
    (*received)->peer = peer_name(listener, (*received)->peer);
    if (admit(listener, **received)) handler_(std::move(**received));
  }
  drain_soon(listener);
}

bool Channel::admit(Listener& listener, const Socket::Received& received) {
  if (!listener.locked) return true;
  const auto holder = lock_.access->find(received.user_id);
  const Status allowed = holder.has_value()
                             ? check_message(holder->role, door_, received.message.type)
                             : Status(unavailable("this key is not allowed any more", "key",
                                                  "ask the operator of the service for another"));
  if (allowed.ok()) return true;
  send(wire::error_reply(received.message, allowed.error()), received.peer);
  return false;
}

}  // namespace bitalloc
