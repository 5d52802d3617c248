// What every command of `bitalloc` shares: the global options, and how a command is registered.
//
// One command runs per process, on the main thread. Data goes to stdout, everything else to stderr
// (output.h).
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <string>

#include "common/status.h"

namespace bitalloc::cli {

// The exit codes that scripts rely on.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // the job failed, or a defect
  kExitUsage = 2,        // wrong usage or input
  kExitUnreachable = 3,  // no service answers
  kExitNotFound = 4,
  kExitInfeasible = 5,  // no assignment meets the budget
  kExitDetached = 130,  // Ctrl-C
};

struct Context {
  bool json = false;           // --json: one JSON document on stdout
  std::string server;          // --server: endpoint of a service; empty: the local home
  std::filesystem::path home;  // --home, BITALLOC_HOME
  // Files: what we know the service by, and what it knows us by (key_store.h); for tcp://.
  std::string server_public_key;  // --server-public-key, BITALLOC_SERVER_PUBLIC_KEY
  std::string key;                // --key, BITALLOC_KEY
};

// Does the command; the value is the exit code.
using Handler = std::function<Result<int>()>;

// Where commands put themselves. The command that was asked for leaves its work in `handler`.
struct CommandLine {
  CLI::App& app;
  Context& context;
  Handler& handler;
};

// A subcommand with --json and, when `service`, --server and --home; `examples` end its --help.
CLI::App* add_command(CommandLine& line, CLI::App& parent, const std::string& name,
                      const std::string& description, const std::string& examples,
                      bool service = true);
// Makes `handler` the work of `command`.
void on_run(CommandLine& line, CLI::App* command, Handler handler);

void add_search_commands(CommandLine& line);      // search, submit
void add_serve_command(CommandLine& line);        // serve
void add_keys_commands(CommandLine& line);        // keys server | new | allow | revoke | list
void add_queue_commands(CommandLine& line);       // list status watch cancel pause resume …
void add_budget_commands(CommandLine& line);      // rebudget frontier assignment
void add_checkpoint_commands(CommandLine& line);  // checkpoint export | import | inspect
void add_export_command(CommandLine& line);
void add_validate_command(CommandLine& line);
void add_refine_command(CommandLine& line);
void add_catalog_commands(CommandLine& line);  // formats recipes recipe
void add_tokenize_command(CommandLine& line);
void add_solve_command(CommandLine& line);
void add_doctor_command(CommandLine& line);

}  // namespace bitalloc::cli
