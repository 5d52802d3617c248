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

#include "common/json.h"
#include "common/status.h"
#include "ops/cli/local_paths.h"

namespace bitalloc::cli {

// The hidden first argument that makes `bitalloc` a supervisor; the home follows it.
inline constexpr const char* kSupervise = "__supervise";

// What run/workers.json asks for. Commands may only raise the count while a service runs; what
// they say of threads, ranks and device goes for the workers that they add.
struct WorkerRequest {
  int count = 0;
  int threads = 0;          // a process; 0: cores / count
  int tensor_parallel = 1;  // processes a worker
  std::string device = "auto";
};
Json to_json(const WorkerRequest& request);
// Nothing asked for when the file is missing or malformed.
WorkerRequest read_worker_request(const std::filesystem::path& file);

// Runs until nobody is attached. The exit code of the process.
int supervise(const std::filesystem::path& home);

}  // namespace bitalloc::cli
