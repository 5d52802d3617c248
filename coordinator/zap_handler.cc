#include "coordinator/zap_handler.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <vector>

namespace bitalloc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookForChangesMs = 1'000;
constexpr size_t kKeyBytes = 32;
constexpr size_t kFrameBytes = 256;  // what is longer is no request of libzmq

// The frames of one message; a frame that is too long comes back empty.
std::vector<std::string> receive_frames(void* socket) {
  std::vector<std::string> frames;
  int more = 1;
  while (more != 0) {
    std::array<char, kFrameBytes> buffer;
    const int size = zmq_recv(socket, buffer.data(), buffer.size(), 0);
    if (size < 0) return {};
    const bool whole = static_cast<size_t>(size) <= buffer.size();
    frames.emplace_back(buffer.data(), whole ? static_cast<size_t>(size) : 0);
    size_t more_size = sizeof more;
    if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &more_size) != 0) return {};
  }
  return frames;
}

std::string z85(const std::string& bytes) {
  std::array<char, 41> text;
  zmq_z85_encode(text.data(), reinterpret_cast<const uint8_t*>(bytes.data()), kKeyBytes);
  return text.data();
}

}  // namespace

ZapHandler::ZapHandler(ZmqContext& context, AccessList& access)
    : context_(context), access_(access) {}

ZapHandler::~ZapHandler() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    BA_CHECK(::write(stop_fd_, &one, sizeof one) == sizeof one, "eventfd");
    thread_.join();
  }
  if (socket_ != nullptr) zmq_close(socket_);
  if (stop_fd_ >= 0) ::close(stop_fd_);
}

Status ZapHandler::start() {
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC);
  socket_ = zmq_socket(context_.handle(), ZMQ_REP);
  BA_CHECK(stop_fd_ >= 0 && socket_ != nullptr, "ZAP handler");
  if (zmq_bind(socket_, "inproc://zeromq.zap.01") != 0) {
    return unavailable(fmt::format("no ZAP handler: {}", zmq_strerror(zmq_errno())));
  }
  // The socket changes threads here, behind the memory barrier that ZeroMQ asks for.
  thread_ = std::thread([this] { run(); });
  return {};
}

void ZapHandler::run() {
  while (true) {
    zmq_pollitem_t items[] = {{socket_, 0, ZMQ_POLLIN, 0}, {nullptr, stop_fd_, ZMQ_POLLIN, 0}};
    const int ready = zmq_poll(items, 2, kLookForChangesMs);
    if ((items[1].revents & ZMQ_POLLIN) != 0) return tell_refusals(/*now=*/true);
    if (ready < 0 && zmq_errno() == ETERM) return;
    if (Clock::now() - looked_ >= std::chrono::milliseconds(kLookForChangesMs)) {
      access_.refresh();
      looked_ = Clock::now();
    }
    tell_refusals();
    Request request;
    if ((items[0].revents & ZMQ_POLLIN) == 0 || !receive(request)) continue;
    reply(request, decide(request));
  }
}

// Frames: version, request id, domain, address, routing id, mechanism, credentials…
bool ZapHandler::receive(Request& request) {
  const std::vector<std::string> frames = receive_frames(socket_);
  if (frames.size() < 6 || frames[0] != "1.0") {
    if (!frames.empty()) reply(request, false);  // a REP socket must answer before it hears more
    return false;
  }
  request = {frames[1], frames[2], frames[3], frames[5], ""};
  if (frames.size() == 7 && frames[6].size() == kKeyBytes) request.key = z85(frames[6]);
  return true;
}

bool ZapHandler::decide(const Request& request) {
  if (request.mechanism != "CURVE" || request.key.empty()) {
    note_refusal(request, "no CURVE key");
    return false;
  }
  const auto holder = access_.find(request.key);
  if (!holder.has_value()) {
    note_refusal(request, fmt::format("the key {} is not allowed", request.key));
    return false;
  }
  for (const Door door : {Door::kClients, Door::kWorkers}) {
    if (request.domain == zap_domain(door) && may_enter(holder->role, door)) return true;
  }
  note_refusal(request, fmt::format("the key of {} '{}' is for another door",
                                    key_role_name(holder->role), holder->name));
  return false;
}

// Frames: version, request id, status code, status text, user id, metadata. The user id is the key:
// what its holder may do is looked up with every message, because the list may have changed.
void ZapHandler::reply(const Request& request, bool allowed) {
  const std::array<std::string, 6> frames = {"1.0",
                                             request.id,
                                             allowed ? "200" : "400",
                                             allowed ? "OK" : "key not allowed",
                                             allowed ? request.key : "",
                                             ""};
  for (size_t i = 0; i < frames.size(); ++i) {
    const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    if (zmq_send(socket_, frames[i].data(), frames[i].size(), flags) < 0) {
      spdlog::error("no answer to a handshake: {}", zmq_strerror(zmq_errno()));
      return;
    }
  }
}

void ZapHandler::note_refusal(const Request& request, const std::string& why) {
  ++refusals_;
  last_refusal_ = fmt::format("{} at {}: {}", request.address, request.domain, why);
}

void ZapHandler::tell_refusals(bool now) {
  if (refusals_ == 0 || (!now && Clock::now() - told_ < std::chrono::seconds(1))) return;
  spdlog::warn("{} connections refused; the last from {}", refusals_, last_refusal_);
  told_ = Clock::now();
  refusals_ = 0;
}

}  // namespace bitalloc
