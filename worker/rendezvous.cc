#include "worker/rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <charconv>
#include <cstring>
#include <fstream>
#include <thread>

#include "common/files.h"

namespace bitalloc {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::string_view kFile = "file:";
constexpr const char* kLoopback = "127.0.0.1";

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

Result<HostPort> parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort parsed;
  if (colon != std::string::npos && colon > 0) {
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, parsed.port);
    parsed.host = text.substr(0, colon);
    if (parsed.host.starts_with('[') && parsed.host.ends_with(']')) {
      parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
    }
    if (error == std::errc() && rest == end) return parsed;
  }
  return invalid_argument(fmt::format("'{}' is not HOST:PORT", text), "--rendezvous",
                          "give the address of rank 0, e.g. 10.0.0.5:7710");
}

struct Resolved {
  sockaddr_storage address = {};
  socklen_t length = 0;
};

Result<Resolved> resolve(const HostPort& where) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      ::getaddrinfo(where.host.c_str(), fmt::format("{}", where.port).c_str(), &hints, &found);
  if (failed != 0) {
    return unavailable(fmt::format("{}: {}", where.host, ::gai_strerror(failed)), "--rendezvous");
  }
  Resolved resolved;
  resolved.length = found->ai_addrlen;
  std::memcpy(&resolved.address, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return resolved;
}

// Binds to that one address; a port of 0 is replaced by the one that the system gave.
Result<int> bind_socket(HostPort& where) {
  BA_ASSIGN_OR_RETURN(Resolved to, resolve(where));
  auto* address = reinterpret_cast<sockaddr*>(&to.address);
  const int descriptor = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (descriptor < 0 || ::bind(descriptor, address, to.length) != 0) {
    const std::string reason = std::strerror(errno);
    if (descriptor >= 0) ::close(descriptor);
    return unavailable(
        fmt::format("rank 0 cannot listen on {}:{}: {}", where.host, where.port, reason),
        "--rendezvous", "it must be an address of the host of rank 0, and free");
  }
  ::getsockname(descriptor, address, &to.length);
  where.port =
      ntohs(address->sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(address)->sin_port);
  return descriptor;
}

// The address of this host from which packets to `where` leave. Nothing is sent.
Result<std::string> address_towards(const HostPort& where) {
  BA_ASSIGN_OR_RETURN(Resolved to, resolve(where));
  auto* address = reinterpret_cast<sockaddr*>(&to.address);
  const int descriptor = ::socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool connected = descriptor >= 0 && ::connect(descriptor, address, to.length) == 0 &&
                         ::getsockname(descriptor, address, &to.length) == 0;
  const std::string reason = std::strerror(errno);
  if (descriptor >= 0) ::close(descriptor);
  char text[NI_MAXHOST] = "";
  if (!connected ||
      ::getnameinfo(address, to.length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
    return unavailable(fmt::format("no way to {}: {}", where.host, reason), "--rendezvous");
  }
  return std::string(text);
}

class TcpStore final : public RendezvousStore {
 public:
  TcpStore(const HostPort& where, const c10d::TCPStoreOptions& options)
      : store_(c10::make_intrusive<c10d::TCPStore>(where.host, options)) {}

  void set(const std::string& key, const std::string& value) override {
    run([&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
  }

  // True for the first process that comes as this rank, to this rank 0.
  bool take_place(int rank) {
    int64_t comers = 0;
    run([&] { comers = store_->add(fmt::format("place/{}", rank), 1); });
    return comers == 1;
  }

  std::string get(const std::string& key) override {
    std::string value;
    run([&] {
      const std::vector<uint8_t> bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }

 private:
  template <typename Call>
  static void run(const Call& call) {
    try {
      call();
    } catch (const std::exception& e) {
      const std::string what = e.what();
      throw CollectiveError("rendezvous: " + what.substr(0, what.find('\n')));
    }
  }

  c10::intrusive_ptr<c10d::TCPStore> store_;
};

Result<std::shared_ptr<TcpStore>> open_store(const HostPort& where, bool is_server, int listening,
                                             milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = where.port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (is_server) options.masterListenFd = listening;
  try {
    return std::make_shared<TcpStore>(where, options);
  } catch (const std::exception& e) {
    const std::string what = e.what();
    return unavailable(fmt::format("rank 0 is not at {}:{} ({})", where.host, where.port,
                                   what.substr(0, what.find('\n'))),
                       "--rendezvous", "start rank 0 too, and open its port to the other hosts");
  }
}

Result<std::string> wait_for_file(const std::string& path, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (Clock::now() < deadline) {
    std::ifstream file(path);
    std::string line;
    if (std::getline(file, line) && !line.empty()) return line;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return unavailable(fmt::format("rank 0 has not written {}", path), "--rendezvous",
                     "start rank 0 too, with the same --rendezvous");
}

Result<Rendezvous> meet_as_first(HostPort where, const std::string& file,
                                 const RendezvousOptions& options) {
  BA_ASSIGN_OR_RETURN(const int listening, bind_socket(where));
  BA_ASSIGN_OR_RETURN(auto store, open_store(where, true, listening, options.timeout));
  if (!file.empty()) {
    BA_RETURN_IF_ERROR(write_file_atomically(file, fmt::format("{}:{}\n", where.host, where.port)));
  }
  BA_ASSIGN_OR_RETURN(std::string own, address_towards(where));
  return Rendezvous{std::move(store), std::move(own)};
}

// A place that is taken is that of a rank which has died; its group will notice and end, and the
// next rank 0 has places for all. Without waiting for that, this rank would wait for a group that
// nobody completes.
Result<std::shared_ptr<TcpStore>> take_place(const HostPort& where,
                                             const RendezvousOptions& options) {
  const auto deadline = Clock::now() + options.timeout;
  while (true) {
    BA_ASSIGN_OR_RETURN(auto store, open_store(where, false, -1, options.timeout));
    try {
      if (store->take_place(options.rank)) return store;
    } catch (const CollectiveError&) {  // that rank 0 has ended
    }
    if (Clock::now() > deadline) {
      return unavailable(fmt::format("the group at {}:{} has its rank {} already", where.host,
                                     where.port, options.rank),
                         "--rendezvous", "give every process a --rank of its own");
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

}  // namespace

Result<Rendezvous> meet(const RendezvousOptions& options) {
  const bool by_file = options.address.starts_with(kFile);
  const std::string file = by_file ? options.address.substr(kFile.size()) : "";
  if (options.rank == 0) {
    HostPort where{kLoopback, 0};
    if (!by_file) {
      BA_ASSIGN_OR_RETURN(where, parse_address(options.address));
    }
    return meet_as_first(where, file, options);
  }
  std::string address = options.address;
  if (by_file) {
    BA_ASSIGN_OR_RETURN(address, wait_for_file(file, options.timeout));
  }
  BA_ASSIGN_OR_RETURN(const HostPort where, parse_address(address));
  BA_ASSIGN_OR_RETURN(auto store, take_place(where, options));
  BA_ASSIGN_OR_RETURN(std::string own, address_towards(where));
  return Rendezvous{std::move(store), std::move(own)};
}

}  // namespace bitalloc
