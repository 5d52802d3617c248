#include "ops/cli/connection.h"

#include <fmt/format.h>

#include <chrono>

#include "common/protocol.h"
#include "ops/cli/interrupt.h"
#include "ops/cli/key_store.h"

namespace bitalloc::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kSliceMs = 200;        // how often a wait looks at Ctrl-C and at the local service
constexpr auto kSendAgain = 5s;       // a request without an answer
constexpr auto kRenewWatch = 3s;      // a watch is forgotten after 30 s
constexpr auto kRemoteHello = 5s;     // then a remote service counts as unreachable: at first
constexpr auto kRemoteSilence = 15s;  // and later on, when it is known to be there
constexpr auto kLocalSilence = 120s;  // a local one is restarted meanwhile

Error no_answer(const std::string& endpoint, bool local) {
  return unavailable(fmt::format("no answer from {}", endpoint), "server",
                     local ? "`bitalloc doctor` checks the set-up"
                           : "check the address, and that `bitalloc serve` runs there");
}

bool has_ended(const Json& status) {
  const std::string state = status.value("state", "");
  return state == "done" || state == "failed" || state == "cancelled";
}

}  // namespace

Result<std::unique_ptr<Connection>> Connection::open(const Context& context,
                                                     const DoorRequest& doors) {
  catch_interrupts();
  std::unique_ptr<LocalService> local;
  if (context.server.empty()) {
    BA_ASSIGN_OR_RETURN(local, LocalService::attach(context.home, doors));
  }
  std::unique_ptr<Connection> connection(
      new Connection(local == nullptr ? context.server : local->endpoint()));
  connection->local_ = std::move(local);
  if (connection->local_ == nullptr) {
    BA_ASSIGN_OR_RETURN(connection->keys_, connection_keys(context));
  }
  BA_RETURN_IF_ERROR(connection->reconnect());
  BA_RETURN_IF_ERROR(connection->ask("info", {{"protocol", spoken_protocols()}}));
  return connection;
}

Status Connection::reconnect() {
  socket_ = std::make_unique<Socket>(context_, Socket::Kind::kDealer);
  if (keys_.has_value()) socket_->use_curve(*keys_);
  return socket_->connect(endpoint_);
}

Status Connection::check_service() {
  if (interrupted()) return cancelled("interrupted");
  if (const auto refusal = socket_->refusal()) return *refusal;
  return local_ == nullptr ? Status() : local_->ensure();
}

std::string Connection::next_correlation_id() { return fmt::format("cli-{}", ++requests_); }

Result<std::optional<wire::Message>> Connection::receive(const std::string& correlation_id,
                                                         int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    BA_ASSIGN_OR_RETURN(auto received, socket_->receive());
    if (received.has_value()) {
      if (received->error.has_value() || received->message.correlation_id != correlation_id) {
        continue;  // an answer to an earlier copy of a request
      }
      return std::optional<wire::Message>(std::move(received->message));
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return std::optional<wire::Message>();
    BA_RETURN_IF_ERROR(socket_->wait(static_cast<int>(left.count())));
    if (interrupted()) return cancelled("interrupted");
  }
}

Result<wire::Message> Connection::request(const std::string& type, Json header,
                                          std::vector<std::string> blobs) {
  wire::Message message{type, next_correlation_id(), std::move(header), std::move(blobs)};
  const auto start = Clock::now();
  auto sent = Clock::time_point();
  const auto remote = type == "info" ? kRemoteHello : kRemoteSilence;
  const auto limit = local_ == nullptr ? remote : kLocalSilence;
  while (Clock::now() - start < limit) {
    if (Clock::now() - sent > kSendAgain) {
      if (sent != Clock::time_point()) BA_RETURN_IF_ERROR(reconnect());
      const Status queued = socket_->send(message);
      if (queued.ok()) sent = Clock::now();
    }
    BA_ASSIGN_OR_RETURN(auto reply, receive(message.correlation_id, kSliceMs));
    if (reply.has_value()) {
      if (reply->type == "error") return wire::error_of(*reply);
      return std::move(*reply);
    }
    BA_RETURN_IF_ERROR(check_service());
  }
  return no_answer(endpoint_, local_ != nullptr);
}

Result<Json> Connection::ask(const std::string& type, Json header) {
  BA_ASSIGN_OR_RETURN(wire::Message reply, request(type, std::move(header)));
  return std::move(reply.header);
}

Result<Json> Connection::watch(const std::string& id,
                               const std::function<bool(const Json&)>& on_status) {
  BA_ASSIGN_OR_RETURN(Json status, ask("status", {{"id", id}}));
  const wire::Message message{"watch", next_correlation_id(), {{"id", id}}, {}};
  auto renewed = Clock::time_point();
  auto told = Clock::time_point();
  while (true) {
    if (Clock::now() - told > 1s) {
      told = Clock::now();
      if (!on_status(status)) return status;
    }
    if (has_ended(status)) return status;
    if (Clock::now() - renewed > kRenewWatch) {
      // The answer to `status` shows that the service is there, whether or not anything changes.
      if (renewed != Clock::time_point()) {
        BA_ASSIGN_OR_RETURN(status, ask("status", {{"id", id}}));
      }
      if (socket_->send(message).ok()) renewed = Clock::now();
    }
    BA_ASSIGN_OR_RETURN(const auto event, receive(message.correlation_id, kSliceMs));
    if (!event.has_value()) {
      BA_RETURN_IF_ERROR(check_service());
      continue;
    }
    if (event->type == "error") return wire::error_of(*event);
    status = event->header.contains("status") ? event->header["status"] : event->header;
    told = Clock::now();
    if (!on_status(status)) return status;
  }
}

}  // namespace bitalloc::cli
