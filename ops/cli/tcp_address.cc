#include "ops/cli/tcp_address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <unistd.h>

#include <cstring>

namespace bitalloc::cli {

Result<TcpAddress> TcpAddress::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const bool good = !host.empty() && !port.empty() && port != "0" &&
                    ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) == 0;
  if (!good) {
    return invalid_argument(fmt::format("--http '{}' is not HOST:PORT", text), "--http",
                            "give an address of this machine, as 127.0.0.1:7680");
  }
  TcpAddress address;
  std::memcpy(&address.address_, found->ai_addr, found->ai_addrlen);
  address.size_ = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

bool TcpAddress::is_free() const {
  const int fd = ::socket(address_.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address_), size_) == 0;
  ::close(fd);
  return bound;
}

bool TcpAddress::accepts_connections() const {
  const int fd = ::socket(address_.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address_), size_) == 0;
  ::close(fd);
  return connected;
}

}  // namespace bitalloc::cli
