#include "coordinator/http/connection.h"

#include <spdlog/spdlog.h>

#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>

#include "coordinator/http/server.h"

namespace bitalloc::http {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using asio::ip::tcp;

constexpr size_t kMaxLingerBytes = 1 << 20;

TimeMs steady_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string address_of(const tcp::socket& socket) {
  boost::system::error_code error;
  const auto peer = socket.remote_endpoint(error);
  return error ? "" : address_key(peer.address().to_string());
}

// Of the request; not of the connection, which may have ended between requests or within one.
bool is_malformed(const boost::system::error_code& error) {
  const boost::system::error_code any = beast_http::make_error_code(beast_http::error::bad_version);
  return error.category() == any.category() && error != beast_http::error::end_of_stream &&
         error != beast_http::error::partial_message;
}

}  // namespace

Connection::Connection(tcp::socket socket, Server& server)
    : socket_(std::move(socket)),
      server_(server),
      address_(address_of(socket_)),
      deadline_(socket_.get_executor()),
      buffer_(kMaxHeaderBytes + kMaxBodyBytes) {}

void Connection::start() {
  boost::system::error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  read();
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  if (ticket_ != 0) server_.port().forget(ticket_);
  if (streams_) --server_.streams();
  deadline_.cancel();
  boost::system::error_code ignored;
  socket_.close(ignored);
  server_.remove(shared_from_this());
}

void Connection::enter(State state, int deadline_ms) {
  state_ = state;
  since_ = steady_ms();
  deadline_.expires_after(std::chrono::milliseconds(deadline_ms));
  deadline_.async_wait([self = shared_from_this()](const Error& error) {
    if (!error) self->on_deadline();
  });
}

void Connection::on_deadline() {
  if (deadline_.expiry() > std::chrono::steady_clock::now()) return;  // set anew meanwhile
  switch (state_) {
    case State::kReading:
      if (!parser_->got_some()) return close();  // it only kept the connection
      timed_out_ = true;
      socket_.cancel();
      return;
    case State::kWaiting:
      server_.port().forget(std::exchange(ticket_, 0));
      return respond(problem(504, unavailable("the coordinator does not answer in time", "",
                                              "the change may still happen; ask again")),
                     false);
    case State::kStreaming:
      return beat();
    case State::kWriting:
    case State::kLingering:
      return close();
    case State::kClosed:
      return;
  }
}

// ---- requests -----------------------------------------------------------------------------------

void Connection::read() {
  parser_.emplace();
  set_limits(*parser_);
  enter(State::kReading, kRequestMs);
  beast_http::async_read(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, size_t) { self->on_read(error); });
}

void Connection::on_read(const Error& error) {
  if (state_ == State::kClosed) return;
  if (timed_out_) {
    return respond(problem(408, unavailable("the request was not there in time")), false);
  }
  if (error) {
    return is_malformed(error) ? respond(refusal_of(error), false) : close();
  }
  head_only_ = parser_->get().method() == beast_http::verb::head;
  wants_keep_alive_ = parser_->get().keep_alive() && ++requests_ < kMaxRequestsPerConnection;
  const Result<Request> request = read_request(parser_->get());
  if (!request.ok()) return respond(problem(400, request.error()), false);
  handle(*request);
}

void Connection::handle(const Request& request) {
  auto decision = server_.site().decide(request, address_, server_.port().ready(), steady_ms());
  if (auto* response = std::get_if<Response>(&decision)) {
    return respond(*response, wants_keep_alive_);
  }
  ask_ = std::get<Ask>(std::move(decision));
  if (ask_->stream && server_.streams() >= kMaxStreams) {
    return respond(problem(503, unavailable("too many event streams are open")), wants_keep_alive_);
  }
  enter(State::kWaiting, kAnswerMs);
  ticket_ = server_.port().request(ask_->message, [weak = weak_from_this()](const auto& reply) {
    if (const auto self = weak.lock()) self->on_reply(reply);
  });
}

void Connection::on_reply(const wire::Message& reply) {
  if (state_ == State::kClosed) return;
  if (reply.type != "event") ticket_ = 0;
  if (!ask_->stream || (reply.type == "error" && state_ == State::kWaiting)) {
    return respond(Site::answer(reply), wants_keep_alive_);
  }
  if (state_ == State::kWaiting) open_stream();
  if (state_ != State::kStreaming) return;
  last_event_ = reply.type != "event";
  send_event(Site::event(reply));
}

void Connection::respond(const Response& response, bool keep_alive) {
  output_ = to_bytes(response, keep_alive, head_only_);
  enter(State::kWriting, kWriteMs);
  asio::async_write(socket_, asio::buffer(output_),
                    [self = shared_from_this(), keep_alive](const Error& error, size_t) {
                      self->on_written(error, keep_alive);
                    });
}

void Connection::on_written(const Error& error, bool keep_alive) {
  if (state_ == State::kClosed) return;
  if (error) return close();
  if (keep_alive) return read();
  linger();
}

// Closing with unread bytes would reset the connection, and the client might lose our answer.
void Connection::linger() {
  boost::system::error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  enter(State::kLingering, kLingerMs);
  discard();
}

void Connection::discard() {
  buffer_.clear();
  socket_.async_read_some(buffer_.prepare(kMaxHeaderBytes),
                          [self = shared_from_this()](const Error& error, size_t bytes) {
                            self->discarded_ += bytes;
                            if (error || self->discarded_ > kMaxLingerBytes) return self->close();
                            self->discard();
                          });
}

// ---- streams ------------------------------------------------------------------------------------

void Connection::open_stream() {
  streams_ = true;
  ++server_.streams();
  Response head;
  head.content_type = "text/event-stream";
  enter(State::kStreaming, kStreamBeatMs);
  send_event(to_bytes(head, false, false) + "retry: 2000\n\n");
  watch_for_close();
}

// Writes `text`, or keeps it for after the one that is being written: in place of an older one.
void Connection::send_event(std::string text) {
  if (writing_event_) {
    next_event_ = std::move(text);
    return;
  }
  writing_event_ = true;
  output_ = std::move(text);
  enter(State::kStreaming, kWriteMs);
  asio::async_write(socket_, asio::buffer(output_),
                    [self = shared_from_this()](const Error& error, size_t) {
                      if (self->state_ == State::kClosed) return;
                      if (error) return self->close();
                      self->writing_event_ = false;
                      self->enter(State::kStreaming, kStreamBeatMs);
                      if (!self->next_event_.empty()) {
                        return self->send_event(std::exchange(self->next_event_, ""));
                      }
                      if (self->last_event_) self->close();
                    });
}

// A client says nothing on a stream: bytes or an end are the end of it.
void Connection::watch_for_close() {
  socket_.async_read_some(buffer_.prepare(1),
                          [self = shared_from_this()](const Error&, size_t) { self->close(); });
}

void Connection::beat() {
  if (writing_event_) return close();  // too slow a reader
  if (!server_.site().still_allowed(*ask_, steady_ms())) return close();
  send_event(": still here\n\n");
}

}  // namespace bitalloc::http
