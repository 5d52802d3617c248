// A worker's conversation with the coordinator: hello, credits, heartbeats, units, results.
//
// Two threads: the caller of `run` owns the socket and everything about the protocol; one compute
// thread runs units through a UnitRunner. A result is kept and sent again until the coordinator
// acknowledges it, across reconnects and restarts of the coordinator.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/ids.h"
#include "common/status.h"
#include "common/zmq/socket.h"
#include "worker/unit_runner.h"

namespace bitalloc {

struct ServiceOptions {
  std::string coordinator;          // endpoint, "ipc:///path" or "tcp://host:port"
  std::optional<CurveClient> keys;  // for tcp://
  int credits = 2;                  // units held at once: one running, the rest ready to start
  std::chrono::milliseconds grace{30'000};  // after `request_stop`, for the running unit
};

class WorkerService {
 public:
  WorkerService(ServiceOptions options, std::unique_ptr<UnitRunner> runner);
  ~WorkerService();

  // Serves until drained or stopped. Errors: kInvalidArgument for a bad endpoint.
  Status run();

  // Takes no more units, finishes the running one within the grace time, says bye, and lets `run`
  // return. Safe in a signal handler.
  void request_stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bitalloc
