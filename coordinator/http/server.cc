#include "coordinator/http/server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "common/secret_file.h"
#include "coordinator/http/connection.h"

namespace bitalloc::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto kRetry = std::chrono::milliseconds(250);
constexpr int kMaxAttempts = 40;

}  // namespace

Server::Server(asio::io_context& loop, RequestPort& port, const Settings& settings)
    : loop_(loop),
      port_(port),
      site_(settings.site, settings.tokens, random_secret),
      endpoint_(asio::ip::make_address(settings.address), settings.port),
      acceptor_(loop),
      timer_(loop) {}

Server::~Server() = default;

bool Server::listen(std::string& reason) {
  boost::system::error_code error;
  acceptor_.open(endpoint_.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint_, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (!error) return true;
  reason = error.message();
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  return false;
}

void Server::start(std::function<void(const std::string&)> fatal) {
  fatal_ = std::move(fatal);
  std::string reason;
  if (listen(reason)) {
    const auto local = acceptor_.local_endpoint();
    spdlog::info("HTTP at http://{}:{}/",
                 local.address().is_v6() ? "[" + local.address().to_string() + "]"
                                         : local.address().to_string(),
                 local.port());
    return accept();
  }
  reason = fmt::format("cannot listen at --http {}:{}: {}", endpoint_.address().to_string(),
                       endpoint_.port(), reason);
  if (++attempts_ >= kMaxAttempts) return fatal_(reason);
  if (attempts_ == 1) spdlog::warn("{}; trying again for 10 s", reason);
  timer_.expires_after(kRetry);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) start(std::move(fatal_));
  });
}

void Server::accept() {
  acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
    if (!error) {
      take(std::move(socket));
      return accept();
    }
    if (error == asio::error::operation_aborted) return;
    spdlog::warn("HTTP: no connection accepted: {}", error.message());  // too many open files
    timer_.expires_after(kRetry);
    timer_.async_wait([this](const boost::system::error_code& stopped) {
      if (!stopped) accept();
    });
  });
}

void Server::take(tcp::socket socket) {
  if (connections_.size() >= kMaxConnections && !make_room()) return;  // closes it
  const auto connection = std::make_shared<Connection>(std::move(socket), *this);
  connections_.insert(connection);
  connection->start();
}

// Closes the connection that has kept us waiting longest; false when all are being answered.
bool Server::make_room() {
  std::shared_ptr<Connection> oldest;
  for (const auto& connection : connections_) {
    if (!connection->is_waited_for()) continue;
    if (oldest == nullptr || connection->since() < oldest->since()) oldest = connection;
  }
  if (oldest == nullptr) return false;
  oldest->close();
  return true;
}

void Server::remove(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
}

}  // namespace bitalloc::http
