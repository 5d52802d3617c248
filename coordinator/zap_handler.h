// The answer to "may this key connect?": libzmq asks it of every CURVE handshake, over
// inproc://zeromq.zap.01 (https://rfc.zeromq.org/spec/27/).
//
// A socket whose context has no handler accepts every key: bind no door before start().
// A thread of its own answers, so that handshakes never wait for the event loop, and looks for
// changes of the allow-list once a second.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "common/zmq/socket.h"
#include "coordinator/access.h"

namespace bitalloc {

class ZapHandler {
 public:
  // `context` and `access` outlive this object.
  ZapHandler(ZmqContext& context, AccessList& access);
  ~ZapHandler();

  // From now on every CURVE socket of the context is guarded. Errors: kUnavailable.
  Status start();

 private:
  struct Request {
    std::string id;
    std::string domain;
    std::string address;  // of the peer, without port
    std::string mechanism;
    std::string key;  // Z85; empty when there is none
  };

  void run();
  bool receive(Request& request);
  bool decide(const Request& request);
  void reply(const Request& request, bool allowed);
  void note_refusal(const Request& request, const std::string& why);
  void tell_refusals(bool now = false);

  ZmqContext& context_;
  AccessList& access_;
  void* socket_ = nullptr;
  int stop_fd_ = -1;
  std::thread thread_;
  // At most one line a second, however many try.
  size_t refusals_ = 0;
  std::string last_refusal_;
  std::chrono::steady_clock::time_point told_;
  std::chrono::steady_clock::time_point looked_;  // for changes of the list
};

}  // namespace bitalloc
