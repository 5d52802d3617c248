#include "common/zmq/socket.h"

#include <fmt/format.h>
#include <zmq.h>

#include <cerrno>
#include <utility>
#include <vector>

namespace bitalloc {
namespace {

constexpr int kHighWaterMark = 10'000;  // messages a peer; beyond it `send` says kUnavailable

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
  std::string_view view() {
    return {static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

}  // namespace

ZmqContext::ZmqContext() : handle_(zmq_ctx_new()) { BA_CHECK(handle_ != nullptr, "zmq_ctx_new"); }
ZmqContext::~ZmqContext() { zmq_ctx_term(handle_); }

Socket::Socket(ZmqContext& context, Kind kind)
    : handle_(zmq_socket(context.handle(), kind == Kind::kRouter ? ZMQ_ROUTER : ZMQ_DEALER)),
      kind_(kind) {
  BA_CHECK(handle_ != nullptr, "zmq_socket");
  set_option(handle_, ZMQ_LINGER, 0);
  set_option(handle_, ZMQ_SNDHWM, kHighWaterMark);
  set_option(handle_, ZMQ_RCVHWM, kHighWaterMark);
  const int64_t largest = static_cast<int64_t>(wire::kMaxBlobBytes);
  BA_CHECK(zmq_setsockopt(handle_, ZMQ_MAXMSGSIZE, &largest, sizeof largest) == 0, "MAXMSGSIZE");
  if (kind == Kind::kRouter) set_option(handle_, ZMQ_ROUTER_MANDATORY, 1);
}

Socket::~Socket() {
  if (handle_ != nullptr) zmq_close(handle_);
}
Socket::Socket(Socket&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), kind_(other.kind_) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(kind_, other.kind_);
  return *this;
}

Status Socket::bind(const std::string& endpoint) {
  if (zmq_bind(handle_, endpoint.c_str()) != 0) {
    return zmq_error(fmt::format("cannot listen at {}", endpoint));
  }
  return {};
}

Status Socket::connect(const std::string& endpoint) {
  if (zmq_connect(handle_, endpoint.c_str()) != 0) {
    return zmq_error(fmt::format("cannot connect to {}", endpoint));
  }
  return {};
}

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
  do {
    Frame frame;
    while (zmq_msg_recv(frame.get(), handle_, ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EAGAIN && frames.empty()) return std::optional<Received>();
      if (zmq_errno() != EINTR) return zmq_error("cannot receive");
    }
    frames.push_back(std::move(frame));
  } while (frames.back().more());

  Received received;
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
