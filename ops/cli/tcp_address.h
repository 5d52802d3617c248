// HOST:PORT of this machine: whether something listens there.
#pragma once

#include <sys/socket.h>

#include <string>

#include "common/status.h"

namespace bitalloc::cli {

class TcpAddress {
 public:
  // A numeric host ("[::1]" for IPv6) or localhost, and a port from 1. Errors: kInvalidArgument
  // (field "--http").
  static Result<TcpAddress> parse(const std::string& text);

  bool is_free() const;              // a server could listen there
  bool accepts_connections() const;  // a server does

 private:
  sockaddr_storage address_ = {};
  socklen_t size_ = 0;
};

}  // namespace bitalloc::cli
