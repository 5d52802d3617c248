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
  // `io_threads`: who encrypts, decrypts and shakes hands.
  explicit ZmqContext(int io_threads = 1);
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* handle() const { return handle_; }

 private:
  void* handle_;
};

// Keys of CURVE (https://rfc.zeromq.org/spec/26/), Z85. See keys.h for their files.
struct CurveServer {
  std::string secret_key;
  std::string zap_domain;  // what the ZAP handler of the context is asked about
};
struct CurveClient {
  std::string server_public_key;
  std::string public_key;
  std::string secret_key;
};

class Socket {
 public:
  enum class Kind { kRouter, kDealer };

  // A received message: who sent it (ROUTER only) and what, or why it is not a message (the type
  // and correlation id that could be read are in `message`).
  struct Received {
    std::string peer;     // routing id, opaque bytes
    std::string user_id;  // what the ZAP handler called the peer; empty without CURVE
    wire::Message message;
    std::optional<Error> error;
  };

  static constexpr int kHighWaterMark = 10'000;

  // Linger 0, the largest message bounded, ROUTER with router_mandatory. `high_water_mark`:
  // messages a peer that wait in either direction; then `send` says kUnavailable, and nothing more
  // is read from that peer.
  Socket(ZmqContext& context, Kind kind, int high_water_mark = kHighWaterMark);
  ~Socket();
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;

  // Before bind or connect. A server without a ZAP handler in its context accepts every key.
  void use_curve(const CurveServer& keys);
  void use_curve(const CurveClient& keys);

  // `endpoint`: ipc:// path or tcp:// address. Errors: kInvalidArgument or kUnavailable.
  Status bind(const std::string& endpoint);
  Status connect(const std::string& endpoint);

  // Never blocks. Errors: kUnavailable when the peer is gone or its queue is full; nothing is sent.
  Status send(const wire::Message& message, const std::string& peer = "");
  // Why the other side does not speak with us (of a connection over TCP): it refuses our key, has
  // another key than we expect, or one side uses keys and the other does not. Nothing while there
  // is hope. After a refusal nobody answers on this socket any more: a new try needs a new one.
  // Errors inside: kUnavailable with a hint.
  std::optional<Error> refusal();

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
  void watch_handshakes();
  void note_handshake(int event, uint32_t value);

  void* context_ = nullptr;
  void* handle_ = nullptr;
  Kind kind_;
  void* monitor_ = nullptr;  // tells the fate of handshakes; of connecting TCP sockets
  std::string endpoint_;     // connected to
  bool encrypted_ = false;
  int broken_handshakes_ = 0;  // since the last one that succeeded
  std::optional<Error> refusal_;
};

}  // namespace bitalloc
