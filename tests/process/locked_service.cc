#include "tests/process/locked_service.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <chrono>

#include "common/process_usage.h"

namespace bitalloc::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRawAtOnce = 1'000;  // connections of one kind
constexpr int kEncryptedAtOnce = 100;
constexpr int kClosedWithinMs = 60'000;   // twelve times what a handshake may take
constexpr int kRefusedWithinMs = 10'000;  // then others try; the client's own work may be slow

sockaddr_in loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int connect_raw(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

// ZMTP 3.0 (https://rfc.zeromq.org/spec/23/): signature, version, mechanism, padding.
std::string null_greeting() {
  std::string greeting = "\xff";
  greeting += std::string(8, '\0') + "\x7f" + std::string("\x03\x00", 2) + "NULL";
  greeting.resize(64, '\0');
  return greeting;
}

// Reads until the other side closes. False: it did not in time.
bool wait_until_closed(int fd, Clock::time_point deadline, const std::atomic<bool>& stop) {
  char buffer[512];
  while (!stop && Clock::now() < deadline) {
    pollfd item = {fd, POLLIN, 0};
    if (::poll(&item, 1, 50) > 0 && ::recv(fd, buffer, sizeof buffer, 0) <= 0) return true;
  }
  return stop;
}

}  // namespace

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  BA_CHECK(::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
               ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0,
           "no free port");
  ::close(fd);
  return ntohs(address.sin_port);
}

std::string tcp_endpoint(int port) { return fmt::format("tcp://127.0.0.1:{}", port); }

KeyRing::KeyRing(const TempDir& dir) : folder_(dir.path("keys")) {
  BA_CHECK(make_key_files(folder_, KeyRole::kServer, "server").ok(), "keys");
  BA_CHECK(write_allow_list(list(), {}).ok(), "allow-list");
}

CurveClient KeyRing::add(KeyRole role, const std::string& name, bool allowed) {
  const NamedKey key = *make_key_files(folder_, role, name);
  if (allowed) {
    allowed_.push_back(key);
    BA_CHECK(write_allow_list(list(), allowed_).ok(), "allow-list");
  }
  return *load_client_keys(path("server.pub"), path(name + ".key"), {role});
}

void KeyRing::revoke(const std::string& name) {
  std::erase_if(allowed_, [&](const NamedKey& key) { return key.name == name; });
  BA_CHECK(write_allow_list(list(), allowed_).ok(), "allow-list");
}

std::vector<std::string> KeyRing::flags(int client_port, int worker_port) const {
  return {"--server-key",      path("server.key"),
          "--allow",           list(),
          "--client-endpoint", tcp_endpoint(client_port),
          "--worker-endpoint", tcp_endpoint(worker_port)};
}

Peer::Peer(int port, const std::optional<CurveClient>& keys)
    : socket_(context_, Socket::Kind::kDealer) {
  if (keys.has_value()) socket_.use_curve(*keys);
  if (port != 0) BA_CHECK(socket_.connect(tcp_endpoint(port)).ok(), "connect");
}

std::unique_ptr<Peer> Peer::with_password(int port) {
  auto peer = std::make_unique<Peer>(0, std::nullopt);
  const std::string word = "guest";
  for (const int option : {ZMQ_PLAIN_USERNAME, ZMQ_PLAIN_PASSWORD}) {
    BA_CHECK(zmq_setsockopt(peer->socket_.handle(), option, word.data(), word.size()) == 0, "set");
  }
  BA_CHECK(peer->socket_.connect(tcp_endpoint(port)).ok(), "connect");
  return peer;
}

Result<wire::Message> Peer::ask(const std::string& type, Json header, int timeout_ms) {
  const std::string id = fmt::format("q{}", ++asked_);
  BA_RETURN_IF_ERROR(socket_.send({type, id, std::move(header), {}}));
  const auto deadline = Clock::now() + milliseconds(timeout_ms);
  while (Clock::now() < deadline) {
    BA_RETURN_IF_ERROR(socket_.wait(20));
    BA_ASSIGN_OR_RETURN(auto received, socket_.receive());
    if (!received.has_value()) {
      if (const auto refusal = socket_.refusal()) return *refusal;
    } else if (received->message.correlation_id == id) {
      if (received->message.type == "error") return wire::error_of(received->message);
      return std::move(received->message);
    }
  }
  return unavailable("silence");
}

Flood::Flood(FloodOptions options) : options_(std::move(options)) {
  BA_CHECK(raise_descriptor_limit().ok(), "setrlimit");
  const int each = options_.count / 5;
  const std::string garbage = "GET / HTTP/1.1\r\nHost: here\r\n\r\n" + std::string(200, '\x01');
  threads_.emplace_back([this, each] { raw(null_greeting(), each); });
  threads_.emplace_back([this, each, garbage] { raw(garbage, each); });
  threads_.emplace_back([this, each] { raw("", each); });
  threads_.emplace_back([this, each] { encrypted(/*wrong_server=*/false, each); });
  threads_.emplace_back([this, each] { encrypted(/*wrong_server=*/true, each); });
}

Flood::~Flood() {
  stop_ = true;
  wait();
}

void Flood::wait() {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Flood::raw(const std::string& greeting, int count) {
  for (int done = 0; done < count && !stop_;) {
    std::vector<int> open;
    for (; done < count && std::ssize(open) < kRawAtOnce && !stop_; ++done) {
      const int fd = connect_raw(options_.port);
      if (fd < 0) {
        std::this_thread::sleep_for(milliseconds(1));
        continue;
      }
      ++made_;
      if (!greeting.empty()) (void)!::send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL);
      open.push_back(fd);
    }
    const auto deadline = Clock::now() + milliseconds(kClosedWithinMs);
    for (const int fd : open) {
      if (!wait_until_closed(fd, deadline, stop_)) ++still_open_;
      ::close(fd);
    }
  }
}

void Flood::encrypted(bool wrong_server, int count) {
  for (int done = 0; done < count && !stop_;) {
    ZmqContext context;
    std::vector<Socket> sockets;
    for (; done < count && std::ssize(sockets) < kEncryptedAtOnce && !stop_; ++done) {
      const KeyPair own = make_key_pair();
      Socket socket(context, Socket::Kind::kDealer);
      socket.use_curve(
          CurveClient{wrong_server ? make_key_pair().public_key : options_.server_public_key,
                      own.public_key, own.secret_key});
      if (socket.connect(tcp_endpoint(options_.port)).ok()) ++made_;
      sockets.push_back(std::move(socket));
    }
    const auto deadline = Clock::now() + milliseconds(kRefusedWithinMs);
    for (Socket& socket : sockets) {
      while (!socket.refusal().has_value() && !stop_ && Clock::now() < deadline) {
        std::this_thread::sleep_for(milliseconds(2));
      }
    }
  }
}

}  // namespace bitalloc::testing
