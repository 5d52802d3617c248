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
  bitalloc serve --http                               (the page, at 127.0.0.1:7680)
  bitalloc submit --model ./m --data score.jsonl      (in another terminal)
Ctrl-C stops it; what is done stays, and unfinished searches go on the next time.)";

void print_facts(const Context& context, const LocalService& service, const WorkerFlags& workers,
                 const HttpRequest& http) {
  const LocalPaths& paths = service.paths();
  Json facts = {{"client_endpoint", service.endpoint()},
                {"worker_endpoint", paths.worker_endpoint()},
                {"home", paths.home.string()},
                {"workers", workers.workers}};
  std::string text = fmt::format("serving {}\n  clients: --server {}\n  workers: {}",
                                 paths.home.string(), service.endpoint(), paths.worker_endpoint());
  if (!http.address.empty()) {
    const std::string url = fmt::format("http://{}/", http.address);
    facts["http"] = {{"url", url}, {"token_file", paths.http_token().string()}};
    text += fmt::format("\n  page: {} (token: {})", url, paths.http_token().string());
  }
  if (context.json) {
    print_json(facts);
  } else {
    print_line(context, text);
  }
}

// An attached command is all that keeps the supervisor running: serving is being attached.
Result<int> serve(const Context& context, const WorkerFlags& workers, const HttpRequest& http) {
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  LocalService& service = *connection->local();
  BA_RETURN_IF_ERROR(want_workers(*connection, workers));
  if (!http.address.empty()) BA_RETURN_IF_ERROR(service.want_http(http));
  print_facts(context, service, workers, http);
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
  auto http = std::make_shared<HttpRequest>();
  command
      ->add_option("--http", http->address,
                   "serve the page and the REST API at HOST:PORT (127.0.0.1:7680)")
      ->expected(0, 1)
      ->default_str("127.0.0.1:7680");
  command->add_flag("--http-read-only", http->read_only, "refuse every change over HTTP");
  command->add_option("--home", line.context.home, "folder of local mode")
      ->envname("BITALLOC_HOME");
  const Context& context = line.context;
  on_run(line, command, [=, &context] {
    Context local = context;
    local.server.clear();  // BITALLOC_SERVER does not matter to who is the service
    return serve(local, *workers, *http);
  });
}

}  // namespace bitalloc::cli
