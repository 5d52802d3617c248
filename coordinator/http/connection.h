// One connection of the HTTP front: reads a request, has it answered, writes the answer, again.
//
// Thread rule: the loop's thread. Lives as long as the server lists it or an operation is pending.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>  // before Asio's coroutines

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include "coordinator/http/parser.h"
#include "coordinator/http/site.h"
#include "coordinator/request_port.h"

namespace bitalloc::http {

class Server;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `server` outlives this object.
  Connection(boost::asio::ip::tcp::socket socket, Server& server);

  void start();
  void close();
  // A request (or the end of one) is what comes next: nobody loses an answer by close().
  bool is_waited_for() const { return state_ == State::kReading; }
  TimeMs since() const { return since_; }  // when this state began

 private:
  using Error = boost::system::error_code;
  // reading → waiting (for the coordinator) → writing → reading …, or → streaming; every one →
  // closed. Lingering reads what a refused client still sends, so that it sees the answer.
  enum class State { kReading, kWaiting, kWriting, kStreaming, kLingering, kClosed };

  void enter(State state, int deadline_ms);
  void on_deadline();
  void read();
  void on_read(const Error& error);
  void handle(const Request& request);
  void on_reply(const wire::Message& reply);
  void respond(const Response& response, bool keep_alive);
  void on_written(const Error& error, bool keep_alive);
  void linger();
  void discard();

  // Streams.
  void open_stream();
  void send_event(std::string text);
  void watch_for_close();
  void beat();

  boost::asio::ip::tcp::socket socket_;
  Server& server_;
  const std::string address_;  // of the peer, as Access counts them
  boost::asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  State state_ = State::kReading;
  TimeMs since_ = 0;
  bool timed_out_ = false;
  int requests_ = 0;
  size_t discarded_ = 0;  // bytes, while lingering
  bool head_only_ = false;
  bool wants_keep_alive_ = false;
  std::string output_;  // being written
  std::optional<Ask> ask_;
  RequestPort::Ticket ticket_ = 0;  // 0: nothing is asked
  bool streams_ = false;            // counts in server_.streams()
  std::string next_event_;          // of a stream: the newest that is not being written
  bool last_event_ = false;         // after it the stream ends
  bool writing_event_ = false;
};

}  // namespace bitalloc::http
