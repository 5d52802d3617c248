// A door of the coordinator: ROUTER sockets on the event loop, and which endpoints they may listen
// at. A plain socket (ipc://, or the loopback when that was allowed) trusts whoever reaches it, as
// file permissions decide; a socket over TCP has CURVE, and hears only what the peer's role may say
// (access.h).
//
// Thread rule: the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/zmq/socket.h"
#include "coordinator/access.h"

namespace bitalloc {

// How TCP is guarded. The default: not at all, so that only ipc:// may be listened at.
struct DoorLock {
  std::string server_secret_key;       // Z85; empty: no keys
  const AccessList* access = nullptr;  // with keys; outlives the channel
  bool plain_loopback = false;         // tcp:// of the loopback may do without keys
};

// ipc:// anywhere; tcp:// with keys, or plain on the loopback when `lock` says so. Errors:
// kInvalidArgument naming `flag`.
Status check_endpoint(const std::string& endpoint, const std::string& flag, const DoorLock& lock);

class Channel {
 public:
  using Handler = std::function<void(Socket::Received)>;

  // `loop` and `context` outlive this object. With keys, the context has its ZAP handler already.
  Channel(boost::asio::io_context& loop, ZmqContext& context, Door door, DoorLock lock,
          Handler handler);
  ~Channel();

  // And starts to listen. Any number of endpoints; those over TCP have keys unless the lock has
  // none.
  Status bind(const std::string& endpoint);
  // To a peer that is gone or too slow the message is lost: the protocol repeats what matters.
  void send(const wire::Message& message, const std::string& peer);

 private:
  struct Listener {
    Listener(boost::asio::io_context& loop, ZmqContext& context, Door door);
    Socket socket;
    boost::asio::posix::stream_descriptor descriptor;  // of ZMQ_FD, which belongs to the socket
    bool locked = false;
    bool drain_posted = false;
  };

  void wait(Listener& listener);
  void drain_soon(Listener& listener);
  void drain(Listener& listener);
  // Whether the peer may say this; answers it when not.
  bool admit(Listener& listener, const Socket::Received& received);
  std::string peer_name(const Listener& listener, const std::string& routing_id) const;

  boost::asio::io_context& loop_;
  ZmqContext& context_;
  const Door door_;
  const DoorLock lock_;
  Handler handler_;
  std::vector<std::unique_ptr<Listener>> listeners_;
};

}  // namespace bitalloc
