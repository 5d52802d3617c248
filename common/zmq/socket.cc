#include "common/zmq/socket.h"

#include <fmt/format.h>
#include <zmq.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace bitalloc {
namespace {

constexpr int kHandshakeMs = 5'000;  // a peer that has not shaken hands by then is cut off
constexpr int kBacklog = 1'024;      // connections that the kernel keeps until we accept them
constexpr int kKeepAliveIdleS = 60;  // then the kernel asks whether the peer's machine lives
constexpr int kCurveOverhead = 64;   // bytes that encryption adds to a frame, at most
constexpr const char* kGiveKeys =
    "give the service's server.pub and a key that it allows (`bitalloc keys --help`)";
constexpr size_t kKeptFrames = wire::kMaxFrames + 2;  // routing id, and one more than allowed
constexpr int kBrokenHandshakes = 3;                  // in a row are no accident

Error zmq_error(const std::string& what) {
  const int number = zmq_errno();
  const std::string text = fmt::format("{}: {}", what, zmq_strerror(number));
  return number == EINVAL || number == ENODEV || number == EPROTONOSUPPORT
             ? invalid_argument(text, "endpoint")
             : unavailable(text);
}

void set_option(void* socket, int option, int value) {
  BA_CHECK(zmq_setsockopt(socket, option, &value, sizeof value) == 0, "zmq_setsockopt");
}

void set_option(void* socket, int option, const std::string& text) {
  BA_CHECK(zmq_setsockopt(socket, option, text.c_str(), text.size()) == 0, "zmq_setsockopt");
}

// What strangers may cost before they are known, and the kernel's watch over those who are.
void bound_connections(void* socket) {
  set_option(socket, ZMQ_HANDSHAKE_IVL, kHandshakeMs);
  set_option(socket, ZMQ_BACKLOG, kBacklog);
  set_option(socket, ZMQ_TCP_KEEPALIVE, 1);
  set_option(socket, ZMQ_TCP_KEEPALIVE_IDLE, kKeepAliveIdleS);
}

// One frame of a multipart message; owns its memory.
class Frame {
 public:
  Frame() { zmq_msg_init(&message_); }
  ~Frame() { zmq_msg_close(&message_); }
  Frame(Frame&& other) noexcept {
    zmq_msg_init(&message_);
    zmq_msg_move(&message_, &other.message_);
  }
  Frame& operator=(Frame&&) = delete;
  zmq_msg_t* get() { return &message_; }
  bool more() { return zmq_msg_more(&message_) != 0; }
  // What ZAP said of the sender; empty when it was not asked.
  std::string user_id() {
    const char* text = zmq_msg_gets(&message_, "User-Id");
    return text == nullptr ? "" : text;
  }
  std::string_view view() {
    return {static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

}  // namespace

ZmqContext::ZmqContext(int io_threads) : handle_(zmq_ctx_new()) {
  BA_CHECK(handle_ != nullptr, "zmq_ctx_new");
  BA_CHECK(zmq_ctx_set(handle_, ZMQ_IO_THREADS, io_threads) == 0, "ZMQ_IO_THREADS");
}
ZmqContext::~ZmqContext() { zmq_ctx_term(handle_); }

Socket::Socket(ZmqContext& context, Kind kind, int high_water_mark)
    : context_(context.handle()),
      handle_(zmq_socket(context_, kind == Kind::kRouter ? ZMQ_ROUTER : ZMQ_DEALER)),
      kind_(kind) {
  BA_CHECK(handle_ != nullptr, "zmq_socket");
  set_option(handle_, ZMQ_LINGER, 0);
  set_option(handle_, ZMQ_SNDHWM, high_water_mark);
  set_option(handle_, ZMQ_RCVHWM, high_water_mark);
  const int64_t largest = static_cast<int64_t>(wire::kMaxBlobBytes) + kCurveOverhead;
  BA_CHECK(zmq_setsockopt(handle_, ZMQ_MAXMSGSIZE, &largest, sizeof largest) == 0, "MAXMSGSIZE");
  bound_connections(handle_);
  if (kind == Kind::kRouter) set_option(handle_, ZMQ_ROUTER_MANDATORY, 1);
}

Socket::~Socket() {
  if (handle_ == nullptr) return;
  if (monitor_ != nullptr) {
    zmq_socket_monitor(handle_, nullptr, 0);
    zmq_close(monitor_);
  }
  zmq_close(handle_);
}
Socket::Socket(Socket&& other) noexcept : kind_(other.kind_) { *this = std::move(other); }
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(handle_, other.handle_);
  std::swap(kind_, other.kind_);
  std::swap(monitor_, other.monitor_);
  std::swap(endpoint_, other.endpoint_);
  std::swap(encrypted_, other.encrypted_);
  std::swap(broken_handshakes_, other.broken_handshakes_);
  std::swap(refusal_, other.refusal_);
  return *this;
}

void Socket::use_curve(const CurveServer& keys) {
  set_option(handle_, ZMQ_CURVE_SERVER, 1);
  set_option(handle_, ZMQ_CURVE_SECRETKEY, keys.secret_key);
  set_option(handle_, ZMQ_ZAP_DOMAIN, keys.zap_domain);
  encrypted_ = true;
}

void Socket::use_curve(const CurveClient& keys) {
  set_option(handle_, ZMQ_CURVE_SERVERKEY, keys.server_public_key);
  set_option(handle_, ZMQ_CURVE_PUBLICKEY, keys.public_key);
  set_option(handle_, ZMQ_CURVE_SECRETKEY, keys.secret_key);
  encrypted_ = true;
}

Status Socket::bind(const std::string& endpoint) {
  if (zmq_bind(handle_, endpoint.c_str()) != 0) {
    return zmq_error(fmt::format("cannot listen at {}", endpoint));
  }
  return {};
}

Status Socket::connect(const std::string& endpoint) {
  endpoint_ = endpoint;
  if (endpoint.starts_with("tcp://")) watch_handshakes();
  if (zmq_connect(handle_, endpoint.c_str()) != 0) {
    return zmq_error(fmt::format("cannot connect to {}", endpoint));
  }
  return {};
}

// ---- handshakes ---------------------------------------------------------------------------------

void Socket::watch_handshakes() {
  // An inproc name of its own for as long as the socket lives.
  const std::string name = fmt::format("inproc://handshakes-{}", fmt::ptr(handle_));
  constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  BA_CHECK(zmq_socket_monitor(handle_, name.c_str(), kEvents) == 0, "zmq_socket_monitor");
  monitor_ = zmq_socket(context_, ZMQ_PAIR);
  BA_CHECK(monitor_ != nullptr, "zmq_socket");
  BA_CHECK(zmq_connect(monitor_, name.c_str()) == 0, "monitor");
}

std::optional<Error> Socket::refusal() {
  while (monitor_ != nullptr) {
    Frame event;  // 16 bits of event, 32 bits of value; then a frame with the address
    if (zmq_msg_recv(event.get(), monitor_, ZMQ_DONTWAIT) < 0) break;
    uint16_t number = 0;
    uint32_t value = 0;
    std::memcpy(&number, event.view().data(), sizeof number);
    std::memcpy(&value, event.view().data() + sizeof number, sizeof value);
    Frame address;
    if (event.more() && zmq_msg_recv(address.get(), monitor_, ZMQ_DONTWAIT) < 0) break;
    note_handshake(number, value);
  }
  return refusal_;
}

void Socket::note_handshake(int event, uint32_t value) {
  const auto refused = [this](const std::string& why, const std::string& hint) {
    refusal_ = unavailable(fmt::format("{} {}", endpoint_, why), "key", hint);
  };
  if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
    broken_handshakes_ = 0;
    refusal_.reset();
  } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
    refused("refuses this key",
            "its operator allows keys with `bitalloc keys allow FILE.pub`; each door takes only "
            "its own roles");
  } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL &&
             value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    encrypted_ ? refused("does not use keys, but this side does",
                         "check the address; leave the keys out only on a machine of your own")
               : refused("asks for a key", kGiveKeys);
  } else if (++broken_handshakes_ >= kBrokenHandshakes) {
    // A service that asks for keys often closes before its greeting has been read.
    encrypted_ ? refused("hangs up while shaking hands",
                         "is the server's public key the one of this service?")
               : refused("asks for a key, or is no service of bitalloc", kGiveKeys);
  }
}

// ---- messages -----------------------------------------------------------------------------------

Status Socket::send(const wire::Message& message, const std::string& peer) {
  std::vector<std::string> frames = wire::encode(message);
  if (kind_ == Kind::kRouter) frames.insert(frames.begin(), peer);
  for (size_t i = 0; i < frames.size(); ++i) {
    // Whether a multipart message is taken is decided at its first frame.
    const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    while (zmq_send(handle_, frames[i].data(), frames[i].size(), flags) < 0) {
      if (zmq_errno() != EINTR) return zmq_error("cannot send " + message.type);
    }
  }
  return {};
}

Result<std::optional<Socket::Received>> Socket::receive() {
  std::vector<Frame> frames;
  bool more = false;
  do {
    Frame frame;
    while (zmq_msg_recv(frame.get(), handle_, ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EAGAIN && frames.empty()) return std::optional<Received>();
      if (zmq_errno() != EINTR) return zmq_error("cannot receive");
    }
    more = frame.more();
    // What decode() refuses for its number of frames is not kept in memory.
    if (frames.size() < kKeptFrames) frames.push_back(std::move(frame));
  } while (more);

  Received received;
  received.user_id = frames.front().user_id();
  std::vector<std::string_view> views;
  for (Frame& frame : frames) views.push_back(frame.view());
  if (kind_ == Kind::kRouter) {
    received.peer = std::string(views.front());
    views.erase(views.begin());
  }
  wire::Message partial;
  Result<wire::Message> message = wire::decode(views, &partial);
  if (message.ok()) {
    received.message = std::move(message).value();
  } else {
    received.message = partial;
    received.error = std::move(message).error();
  }
  return std::optional<Received>(std::move(received));
}

Result<bool> Socket::wait(int timeout_ms, int other_fd) {
  zmq_pollitem_t items[] = {{handle_, 0, ZMQ_POLLIN, 0}, {nullptr, other_fd, ZMQ_POLLIN, 0}};
  const int ready = zmq_poll(items, other_fd < 0 ? 1 : 2, timeout_ms);
  if (ready < 0 && zmq_errno() != EINTR) return zmq_error("cannot wait");
  return ready > 0 && (items[0].revents & ZMQ_POLLIN) != 0;
}

int Socket::file_descriptor() const {
  int fd = -1;
  size_t size = sizeof fd;
  BA_CHECK(zmq_getsockopt(handle_, ZMQ_FD, &fd, &size) == 0, "ZMQ_FD");
  return fd;
}

}  // namespace bitalloc
