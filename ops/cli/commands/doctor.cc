// `bitalloc doctor`: is everything there that commands need, and how to mend what is not.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "ops/cli/connection.h"
#include "ops/cli/data.h"
#include "ops/cli/key_store.h"
#include "ops/cli/output.h"
#include "ops/cli/process.h"
#include "ops/cli/recipe.h"
#include "ops/cli/settings.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

constexpr uintmax_t kLowDiskBytes = uintmax_t{1} << 30;

struct Finding {
  std::string check;
  bool ok = true;
  std::string detail;
  std::string hint;  // how to mend it
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// A program that must answer `arguments` with exit code 0; its first line is the detail.
Finding program(const std::string& check, const std::vector<std::string>& arguments,
                const std::string& hint) {
  Finding finding{check, false, "", hint};
  const Result<ProgramResult> result = run_program(arguments);
  if (!result.ok()) {
    finding.detail = result.error().message;
    return finding;
  }
  finding.ok = result->exit_code == 0;
  const std::string said = first_line(result->output.empty() ? result->errors : result->output);
  finding.detail = finding.ok ? fmt::format("{} ({})", said, arguments[0])
                              : fmt::format("exit code {}: {}", result->exit_code, said);
  return finding;
}

Finding redis_server() {
  const std::string hint = "install it: apt-get install redis-server";
  const fs::path file = find_in_path("redis-server");
  if (file.empty()) return {"redis-server", false, "not found in PATH", hint};
  return program("redis-server", {file.string(), "--version"}, hint);
}

Finding home(const Context& context) {
  const LocalPaths paths = local_paths(context.home);
  const Status made = make_folders(paths);
  if (!made.ok()) return {"home", false, made.error().message, made.error().hint};
  const bool writable = ::access(paths.home.c_str(), W_OK) == 0;
  return {"home", writable,
          fmt::format("{}, sockets in {}", paths.home.string(), paths.sockets.string()),
          "choose a folder that you may write to with --home or BITALLOC_HOME"};
}

Finding disk(const Context& context) {
  std::error_code error;
  const fs::space_info space = fs::space(local_paths(context.home).home, error);
  const uintmax_t available = error ? 0 : space.available;
  return {"disk", available >= kLowDiskBytes,
          fmt::format("{:.1f} GiB free", static_cast<double>(available) / (1 << 30)),
          "free some space, or choose another home: a full disk stops every search"};
}

Finding device() {
  std::error_code ignored;
  const bool cuda = fs::exists("/dev/nvidia0", ignored);
  return {"device", true, cuda ? "a CUDA device is there" : "no CUDA device: workers use the CPU",
          ""};
}

Finding recipes() {
  int count = 0;
  for (const fs::path& file : recipe_files()) {
    const Result<Recipe> recipe = load_recipe(file.string());
    if (!recipe.ok()) return {"recipes", false, recipe.error().message, "mend or remove the file"};
    ++count;
  }
  return {"recipes", count > 0, fmt::format("{} in {}", count, recipes_folder().string()),
          "set BITALLOC_RECIPES to the folder of recipes"};
}

// The keys of this home: readable, secret, and belonging together. None is fine for ipc://.
Finding keys(const Context& context) {
  const fs::path folder = keys_folder(context.home);
  const std::string mend = "`bitalloc keys --help` says how keys are made and where they belong";
  const auto problem = [&](const Error& error) {
    return Finding{"keys", false, error.message, error.hint.empty() ? mend : error.hint};
  };
  const auto connection = connection_keys(context);
  if (!connection.ok()) return problem(connection.error());
  std::error_code ignored;
  int secrets = 0;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".key") continue;
    const Result<NamedKey> key = read_secret_key(entry.path());
    if (!key.ok()) return problem(key.error());
    ++secrets;
  }
  const auto allowed = allowed_keys(allow_list_file(context.home));
  if (!allowed.ok()) return problem(allowed.error());
  return {"keys", true,
          fmt::format("{} secret keys and {} allowed ones in {}{}", secrets, allowed->size(),
                      folder.string(),
                      connection->has_value() ? "; the service is spoken to with keys" : ""),
          ""};
}

// A service that answers, with a Redis that keeps what it has acknowledged.
Finding service(const Context& context) {
  const auto connection = Connection::open(context);
  if (!connection.ok()) {
    return {"service", false, connection.error().message, connection.error().hint};
  }
  const Result<Json> info = (*connection)->ask("info");
  if (!info.ok()) return {"service", false, info.error().message, info.error().hint};
  const Json redis = info->value("redis", Json::object());
  const bool durable = redis.value("durable", false);
  return {"service", durable,
          fmt::format("coordinator {} at {}, Redis {}: {}", info->value("version", "?"),
                      (*connection)->endpoint(), durable ? "durable" : "not durable",
                      redis.value("detail", "")),
          "Redis needs: appendonly yes, appendfsync always, maxmemory-policy noeviction"};
}

std::vector<Finding> examine(const Context& context) {
  const std::string build = "build it (ops/setup.sh), and keep it beside bitalloc or in PATH";
  return {
      redis_server(),
      program("coordinator", {program_beside("bitalloc-coordinator").string(), "--version"}, build),
      program("worker", {program_beside("bitalloc-worker").string(), "--version"}, build),
      program("python",
              {python_program(), "-c",
               "import numpy, safetensors, sys, tokenizers; "
               "print('Python', sys.version.split()[0], 'tokenizers', tokenizers.__version__)"},
              "run ops/setup.sh, or set BITALLOC_PYTHON to a Python that has the tokenizers, "
              "numpy and safetensors packages"),
      recipes(),
      device(),
      home(context),
      disk(context),
      keys(context),
      service(context)};
}

Result<int> doctor(const Context& context) {
  bool all_good = true;
  Json rows = Json::array();
  for (const Finding& finding : examine(context)) {
    all_good = all_good && finding.ok;
    rows.push_back({{"check", finding.check},
                    {"ok", finding.ok},
                    {"detail", finding.detail},
                    {"hint", finding.ok ? Json() : Json(finding.hint)}});
    if (context.json) continue;
    print_line(context, fmt::format("{:<8} {:<13} {}", finding.ok ? "OK" : "PROBLEM", finding.check,
                                    finding.detail));
    if (!finding.ok) print_line(context, fmt::format("{:22} mend: {}", "", finding.hint));
  }
  if (context.json) print_json({{"ok", all_good}, {"checks", rows}});
  return all_good ? kExitOk : kExitFailed;
}

}  // namespace

void add_doctor_command(CommandLine& line) {
  const Context& context = line.context;
  CLI::App* command =
      add_command(line, line.app, "doctor", "check the set-up and say how to mend it",
                  "examples:\n  bitalloc doctor\n  bitalloc doctor --server tcp://service:7600 "
                  "--key ann.key --server-public-key server.pub");
  on_run(line, command, [&context] { return doctor(context); });
}

}  // namespace bitalloc::cli
