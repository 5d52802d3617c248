// The supervisor of local mode: one process a home that runs redis-server, the coordinator and the
// workers as its children, restarts those that die, and ends with the last attached command.
//
// Attached means: holds run/clients.lock shared (local_service.h). The supervisor holds
// run/supervisor.lock for its life and writes run/service.json ("state": starting, running,
// failed). It tries for clients.lock exclusively; once it gets it, nobody is attached: it keeps the
// lock while it shuts down, so that new commands wait and then start a new service. Children die
// with it (PR_SET_PDEATHSIG). redis-server itself inherits the lock on redis/writer.lock: whatever
// is killed and when, two redis-servers never write one append-only file.
//
// A worker of several ranks lives and dies as one: when a rank ends, the others get some seconds to
// notice and to give their unit back, are killed if they still live, and all are started anew.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "ops/cli/local_paths.h"

namespace bitalloc::cli {

// The hidden first argument that makes `bitalloc` a supervisor; the home and its doors (a JSON
// text) follow it.
inline constexpr const char* kSupervise = "__supervise";

// What run/workers.json asks for. Commands may only raise the count while a service runs; what
// they say of threads, ranks and device goes for the workers that they add.
struct WorkerRequest {
  int count = 0;
  int threads = 0;          // a process; 0: cores / count
  int tensor_parallel = 1;  // processes a worker
  std::string device = "auto";
  // Sizes for the workers' flags of the same names, as given ("8GiB"); empty: the worker's default.
  std::string memory_limit;
  std::string activation_memory;
  std::string host_activation_memory;
};
Json to_json(const WorkerRequest& request);
// Nothing asked for when the file is missing or malformed.
WorkerRequest read_worker_request(const std::filesystem::path& file);

// What `bitalloc serve` opens beyond the sockets of the home. Nothing: only this user's own
// processes reach the service.
struct DoorRequest {
  std::string listen;                    // clients, tcp://address:port; with the home's keys
  std::string listen_workers;            // the same for workers
  std::vector<std::string> model_roots;  // where submitted models may be; empty: anywhere

  bool operator==(const DoorRequest&) const = default;
};
Json to_json(const DoorRequest& doors);
// What is missing or malformed is as if not asked for.
DoorRequest doors_from_json(const Json& json);
// What run/http.json asks for: the HTTP front of the coordinator, which is started again for it.
struct HttpRequest {
  std::string address;  // HOST:PORT; empty: none
  bool read_only = false;
  bool operator==(const HttpRequest&) const = default;
};
Json to_json(const HttpRequest& request);
// As read_worker_request.
HttpRequest read_http_request(const std::filesystem::path& file);

// Runs until nobody is attached. The exit code of the process.
int supervise(const std::filesystem::path& home, const std::string& doors);

}  // namespace bitalloc::cli
