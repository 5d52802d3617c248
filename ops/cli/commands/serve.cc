// `bitalloc serve`: the local home's service, up until stopped.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>

#include "ops/cli/follow.h"
#include "ops/cli/interrupt.h"
#include "ops/cli/local_service.h"
#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace {

constexpr const char* kExamples = R"(examples:
  bitalloc serve --workers 2
  bitalloc submit --model ./m --data score.jsonl      (in another terminal)
Ctrl-C stops it; what is done stays, and unfinished searches go on the next time.)";

// An attached command is all that keeps the supervisor running: serving is being attached.
Result<int> serve(const Context& context, const WorkerFlags& workers) {
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  LocalService& service = *connection->local();
  BA_RETURN_IF_ERROR(want_workers(*connection, workers));
  const Json facts = {{"client_endpoint", service.endpoint()},
                      {"worker_endpoint", service.paths().worker_endpoint()},
                      {"home", service.paths().home.string()},
                      {"workers", workers.workers}};
  if (context.json) {
    print_json(facts);
  } else {
    print_line(context, fmt::format("serving {}\n  clients: --server {}\n  workers: {}",
                                    service.paths().home.string(), service.endpoint(),
                                    service.paths().worker_endpoint()));
  }
  while (!interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    BA_RETURN_IF_ERROR(service.ensure());
  }
  print_note("stopping");
  return kExitOk;
}

}  // namespace

void add_serve_command(CommandLine& line) {
  auto workers = std::make_shared<WorkerFlags>();
  CLI::App* command =
      add_command(line, line.app, "serve", "coordinator, workers and Redis until stopped",
                  kExamples, /*service=*/false);
  add_worker_options(command, *workers);
  command->add_option("--home", line.context.home, "folder of local mode")
      ->envname("BITALLOC_HOME");
  const Context& context = line.context;
  on_run(line, command, [=, &context] {
    Context local = context;
    local.server.clear();  // BITALLOC_SERVER does not matter to who is the service
    return serve(local, *workers);
  });
}

}  // namespace bitalloc::cli
