// Messages over ZeroMQ sockets: the one place where wire.h meets libzmq. Not part of
// bitalloc_common, so that who needs no sockets does not link them.
//
// Thread rule: a Socket belongs to one thread (ZeroMQ's own rule); a Context may be shared.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/status.h"
#include "common/wire.h"

namespace bitalloc {

// A libzmq context. Lives longer than its sockets.
class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* handle() const { return handle_; }

 private:
  void* handle_;
};

class Socket {
 public:
  enum class Kind { kRouter, kDealer };

  // A received message: who sent it (ROUTER only) and what, or why it is not a message (the type
  // and correlation id that could be read are in `message`).
  struct Received {
    std::string peer;  // routing id, opaque bytes
    wire::Message message;
    std::optional<Error> error;
  };

  // Linger 0, high-water marks and the largest message bounded, ROUTER with router_mandatory.
  Socket(ZmqContext& context, Kind kind);
  ~Socket();
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;

  // `endpoint`: ipc:// path or tcp:// address. Errors: kInvalidArgument or kUnavailable.
  Status bind(const std::string& endpoint);
  Status connect(const std::string& endpoint);

  // Never blocks. Errors: kUnavailable when the peer is gone or its queue is full; nothing is sent.
  Status send(const wire::Message& message, const std::string& peer = "");
  // The next message, or nothing when none is waiting. Never blocks.
  Result<std::optional<Received>> receive();
  // Waits until a message is there, `other_fd` (−1: none) is readable, or `timeout_ms` has passed
  // (−1: for ever); true: a message is there.
  Result<bool> wait(int timeout_ms, int other_fd = -1);

  // ZMQ_FD for an event loop. Edge-triggered: after it fires, and after every send, call `receive`
  // until it gives nothing.
  int file_descriptor() const;
  void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
  Kind kind_;
};

}  // namespace bitalloc
