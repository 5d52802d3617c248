// A ROUTER socket on the event loop, and which endpoints it may listen at.
//
// Thread rule: the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string>

#include "common/zmq/socket.h"

namespace bitalloc {

// ipc:// anywhere, tcp:// on loopback. Errors: kInvalidArgument naming `flag`.
Status check_endpoint(const std::string& endpoint, const std::string& flag);

class Channel {
 public:
  using Handler = std::function<void(Socket::Received)>;

  // `loop` and `context` outlive this object.
  Channel(boost::asio::io_context& loop, ZmqContext& context, Handler handler);
  ~Channel();

  Status bind(const std::string& endpoint);  // and starts to listen
  // To a peer that is gone or too slow the message is lost: the protocol repeats what matters.
  void send(const wire::Message& message, const std::string& peer);

 private:
  void wait();
  void drain_soon();
  void drain();

  boost::asio::io_context& loop_;
  Socket socket_;
  boost::asio::posix::stream_descriptor descriptor_;  // of ZMQ_FD, which belongs to the socket
  Handler handler_;
  bool drain_posted_ = false;
};

}  // namespace bitalloc
