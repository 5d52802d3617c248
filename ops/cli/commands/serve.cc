// `bitalloc serve`: the local home's service, up until stopped.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>

#include "common/model_roots.h"
#include "ops/cli/follow.h"
#include "ops/cli/interrupt.h"
#include "ops/cli/key_store.h"
#include "ops/cli/local_service.h"
#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace {

constexpr const char* kExamples = R"(examples:
  bitalloc serve --workers 2
  bitalloc serve --http                               (the page, at 127.0.0.1:7680)
  bitalloc submit --model ./m --data score.jsonl      (in another terminal)
  bitalloc serve --listen tcp://0.0.0.0:7600 --model-root /models
                         (for other machines; `bitalloc keys --help` says who gets in)
Ctrl-C stops it; what is done stays, and unfinished searches go on the next time.)";

// Keys are made when the first door over TCP is opened; nobody is allowed until somebody says so.
Status check_doors(const Context& context, const DoorRequest& doors) {
  for (const auto& [endpoint, flag] :
       {std::pair(doors.listen, "--listen"), {doors.listen_workers, "--listen-workers"}}) {
    if (endpoint.empty() || endpoint.starts_with("tcp://")) continue;
    return invalid_argument(fmt::format("{} '{}' is not tcp://address:port", flag, endpoint), flag);
  }
  BA_RETURN_IF_ERROR(ModelRoots::make(doors.model_roots, "--model-root"));
  if (doors.listen.empty() && doors.listen_workers.empty()) return {};
  BA_ASSIGN_OR_RETURN(const bool made, ensure_server_keys(context.home));
  if (made) {
    print_note(fmt::format("made {}: give server.pub to clients and workers",
                           (keys_folder(context.home) / "server.key").string()));
  }
  BA_ASSIGN_OR_RETURN(const auto keys, allowed_keys(allow_list_file(context.home)));
  if (keys.empty()) {
    print_note("nobody may connect yet: bitalloc keys new --role client --allow");
  }
  return {};
}

void print_facts(const Context& context, const LocalService& service, const WorkerFlags& workers,
                 const DoorRequest& doors, const HttpRequest& http) {
  const LocalPaths& paths = service.paths();
  Json facts = {{"client_endpoint", service.endpoint()},
                {"worker_endpoint", paths.worker_endpoint()},
                {"listen", doors.listen},
                {"listen_workers", doors.listen_workers},
                {"home", paths.home.string()},
                {"workers", workers.workers}};
  std::string text = fmt::format("serving {}\n  clients: --server {}\n  workers: {}",
                                 paths.home.string(), service.endpoint(), paths.worker_endpoint());
  if (!doors.listen.empty()) text += "\n  clients with keys: " + doors.listen;
  if (!doors.listen_workers.empty()) text += "\n  workers with keys: " + doors.listen_workers;
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
Result<int> serve(const Context& context, const WorkerFlags& workers, const DoorRequest& doors,
                  const HttpRequest& http) {
  BA_RETURN_IF_ERROR(check_doors(context, doors));
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context, doors));
  LocalService& service = *connection->local();
  BA_RETURN_IF_ERROR(want_workers(*connection, workers));
  if (!http.address.empty()) BA_RETURN_IF_ERROR(service.want_http(http));
  print_facts(context, service, workers, doors, http);
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
  auto doors = std::make_shared<DoorRequest>();
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
  command->add_option("--listen", doors->listen,
                      "let clients of other machines connect there, with keys: tcp://address:port");
  command->add_option("--listen-workers", doors->listen_workers, "the same for workers");
  command
      ->add_option("--model-root", doors->model_roots,
                   "submitted models must be below this folder (repeatable; default: anywhere)")
      ->allow_extra_args(false)
      ->envname("BITALLOC_MODEL_ROOTS")
      ->delimiter(':');
  const Context& context = line.context;
  on_run(line, command, [=, &context] {
    Context local = context;
    local.server.clear();  // BITALLOC_SERVER does not matter to who is the service
    for (std::string& root : doors->model_roots) root = std::filesystem::absolute(root).string();
    return serve(local, *workers, *doors, *http);
  });
}

}  // namespace bitalloc::cli
