// A connection to a coordinator: the one of --server, or the one of the local home.
//
// Every request of the protocol may be repeated, so that a lost or restarted coordinator only costs
// time: requests are sent again until answered. One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/wire.h"
#include "common/zmq/socket.h"
#include "ops/cli/command_line.h"
#include "ops/cli/local_service.h"

namespace bitalloc::cli {

class Connection {
 public:
  // Local: starts what is missing, without workers. From now on Ctrl-C is a flag that ends waits
  // (interrupt.h). Errors: kUnavailable when nothing answers, or the service refuses our key;
  // kInvalidArgument when our keys cannot be used.
  // `doors`: see LocalService::attach.
  static Result<std::unique_ptr<Connection>> open(const Context& context,
                                                  const DoorRequest& doors = {});

  // The `ok` reply. Errors: the coordinator's own; kUnavailable when it stays silent; kCancelled on
  // Ctrl-C (see interrupt.h).
  Result<wire::Message> request(const std::string& type, Json header = Json::object(),
                                std::vector<std::string> blobs = {});
  // The header of the reply.
  Result<Json> ask(const std::string& type, Json header = Json::object());

  // Follows a search until it has ended or `on_status` says false; `on_status` gets a search status
  // on every change, and about once a second when there is none. Gives the last status.
  Result<Json> watch(const std::string& id, const std::function<bool(const Json&)>& on_status);

  LocalService* local() { return local_.get(); }  // null with --server
  std::string endpoint() const { return endpoint_; }

 private:
  explicit Connection(std::string endpoint) : endpoint_(std::move(endpoint)) {}

  Status reconnect();
  Status check_service();  // not refused; local: restarts it when it is gone
  Result<std::optional<wire::Message>> receive(const std::string& correlation_id, int timeout_ms);
  std::string next_correlation_id();

  std::string endpoint_;
  std::unique_ptr<LocalService> local_;  // destroyed after the socket
  ZmqContext context_;
  std::unique_ptr<Socket> socket_;
  std::optional<CurveClient> keys_;  // for tcp://
  int64_t requests_ = 0;
};

}  // namespace bitalloc::cli
