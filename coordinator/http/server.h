// The HTTP front: accepts connections and has their requests answered (site.h) by the coordinator.
//
// Thread rule: the loop's thread.
//
// Bounds. 256 connections: when one more comes, the one that has been waited for longest (nothing
// of it is being answered) is closed for it, and when there is none the new one is. A request has
// 10 s to be there, an answer 60 s to be made and 15 s to be taken; then the connection ends. 1,000
// requests a connection. 64 event streams; a stream keeps one event that is not sent yet, the
// newest, since each is the whole status.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>  // before Asio's coroutines

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "coordinator/http/options.h"
#include "coordinator/http/site.h"
#include "coordinator/request_port.h"

namespace bitalloc::http {

inline constexpr size_t kMaxConnections = 256;
inline constexpr size_t kMaxStreams = 64;
inline constexpr int kMaxRequestsPerConnection = 1'000;
inline constexpr int kRequestMs = 10'000;
inline constexpr int kAnswerMs = 60'000;
inline constexpr int kWriteMs = 15'000;
inline constexpr int kStreamBeatMs = 5'000;  // a comment in a quiet stream, and the session's check
inline constexpr int kLingerMs = 1'000;      // for the rest of a request that was refused

class Connection;

class Server {
 public:
  // `loop` and `port` outlive this object.
  Server(boost::asio::io_context& loop, RequestPort& port, const Settings& settings);
  ~Server();

  // Listens. While another process has the address (a coordinator that is being replaced) it tries
  // again for 10 s, then `fatal` is called with the reason.
  void start(std::function<void(const std::string&)> fatal);

  // For connections.
  RequestPort& port() { return port_; }
  Site& site() { return site_; }
  size_t& streams() { return streams_; }
  void remove(const std::shared_ptr<Connection>& connection);

 private:
  bool listen(std::string& reason);
  void accept();
  void take(boost::asio::ip::tcp::socket socket);
  bool make_room();

  boost::asio::io_context& loop_;
  RequestPort& port_;
  Site site_;
  const boost::asio::ip::tcp::endpoint endpoint_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer timer_;
  std::function<void(const std::string&)> fatal_;
  int attempts_ = 0;
  std::set<std::shared_ptr<Connection>> connections_;  // shared with their pending operations
  size_t streams_ = 0;
};

}  // namespace bitalloc::http
