// `bitalloc`: the command line. See command_line.h.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "ops/cli/command_line.h"
#include "ops/cli/interrupt.h"
#include "ops/cli/output.h"
#include "ops/cli/settings.h"
#include "ops/cli/supervisor.h"

namespace bitalloc::cli {
namespace {

constexpr const char* kFooter = R"(examples:
  bitalloc search --model ./SmolLM2-135M-Instruct --data score.jsonl
  bitalloc rebudget my-search --bits 5.0
  bitalloc COMMAND --help

Exit codes: 0 done, 1 the job failed, 2 wrong usage or input, 3 no service answers, 4 not found,
5 no assignment meets the budget, 130 interrupted.
Environment: BITALLOC_HOME, BITALLOC_SERVER, NO_COLOR, …; settings also in bitalloc.yaml.)";

void add_commands(CommandLine& line) {
  add_search_commands(line);
  add_serve_command(line);
  add_keys_commands(line);
  add_queue_commands(line);
  add_budget_commands(line);
  add_validate_command(line);
  add_refine_command(line);
  add_export_command(line);
  add_checkpoint_commands(line);
  add_catalog_commands(line);
  add_tokenize_command(line);
  add_solve_command(line);
  add_doctor_command(line);
}

// What CLI11 says of wrong usage, as one of our errors.
Error usage_error(const CLI::ParseError& error) {
  return invalid_argument(error.what(), "", "`bitalloc --help` and `bitalloc COMMAND --help`");
}

// A library's exception that no adapter expected ends as an error like any other.
Result<int> run_guarded(const Handler& handler) {
  try {
    return handler();
  } catch (const std::exception& e) {
    return internal_error(fmt::format("unexpected: {}", e.what()), "",
                          "please report it with the command that you typed");
  }
}

int run(int argc, char** argv) {
  Context context;
  // Errors of the command line itself follow --json, too.
  context.json = std::any_of(argv + 1, argv + argc,
                             [](const char* word) { return std::strcmp(word, "--json") == 0; });
  const Status settings = apply_settings_file();
  if (!settings.ok()) return print_error(context, settings.error());
  context.home = default_home();

  CLI::App app("bitalloc chooses the number format of every layer's K and V cache.", "bitalloc");
  app.set_version_flag("--version", "bitalloc " BITALLOC_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  Handler handler;
  CommandLine line{app, context, handler};
  add_commands(line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return print_error(context, usage_error(error));
  }
  const Result<int> done = run_guarded(handler);
  if (done.ok() && std::ferror(stdout) != 0) {
    return print_error(context, resource_exhausted("standard output could not be written", "stdout",
                                                   "is the disk full?"));
  }
  if (done.ok()) return *done;
  const int code = print_error(context, done.error());
  return interrupted() ? static_cast<int>(kExitDetached) : code;
}

}  // namespace

CLI::App* add_command(CommandLine& line, CLI::App& parent, const std::string& name,
                      const std::string& description, const std::string& examples, bool service) {
  CLI::App* command = parent.add_subcommand(name, description);
  command->footer(examples);
  command->add_flag("--json", line.context.json, "one JSON document on stdout");
  if (service) {
    command->add_option("--server", line.context.server, "endpoint of a service (ipc:// or tcp://)")
        ->envname("BITALLOC_SERVER");
    command->add_option("--home", line.context.home, "folder of local mode")
        ->envname("BITALLOC_HOME");
    command->add_option("--key", line.context.key, "file of your key, for --server tcp://…")
        ->envname("BITALLOC_KEY");
    command
        ->add_option("--server-public-key", line.context.server_public_key,
                     "the service's server.pub, for --server tcp://…")
        ->envname("BITALLOC_SERVER_PUBLIC_KEY");
  }
  return command;
}

void on_run(CommandLine& line, CLI::App* command, Handler handler) {
  Handler& chosen = line.handler;
  command->callback([&chosen, handler = std::move(handler)] { chosen = handler; });
}

}  // namespace bitalloc::cli

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("bitalloc"));  // stdout is for data
  if (argc == 4 && std::strcmp(argv[1], bitalloc::cli::kSupervise) == 0) {
    return bitalloc::cli::supervise(argv[2], argv[3]);
  }
  return bitalloc::cli::run(argc, argv);
}
