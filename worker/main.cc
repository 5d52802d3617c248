// bitalloc-worker: scores units for a coordinator until it is told to stop.
#include <fmt/format.h>
#include <signal.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "common/zmq/keys.h"
#include "worker/scorer_runner.h"
#include "worker/service.h"

namespace {

constexpr const char* kExamples = R"(
Examples:
  bitalloc-worker --coordinator ipc:///run/bitalloc/workers.sock
  bitalloc-worker --coordinator tcp://coordinator:7601 --device cuda:1 \
      --key /etc/bitalloc/gpu-1.key --server-public-key /etc/bitalloc/server.pub \
      --model-root /models
  bitalloc-worker --coordinator ipc:///run/bitalloc/workers.sock --device cpu --threads 8

It stops on SIGTERM after the unit it runs (at most --grace seconds), at once on a second one.
)";

struct Flags {
  bitalloc::ServiceOptions service;
  bitalloc::ScorerRunnerOptions runner;
  std::string key_file;
  std::string server_public_key_file;
  std::vector<std::string> model_roots;
  std::string log_file;
  std::string log_level = "info";
  int grace_seconds = 30;
};

bitalloc::WorkerService* g_service = nullptr;  // for the signal handler only

void on_signal(int) {
  static volatile sig_atomic_t signals = 0;
  signals = signals + 1;
  if (signals > 1 || g_service == nullptr) ::_exit(130);
  g_service->request_stop();
}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int number : {SIGTERM, SIGINT}) ::sigaction(number, &action, nullptr);
}

void set_up_logging(const Flags& flags) {
  const auto logger = flags.log_file.empty() ? spdlog::stderr_color_mt("worker")
                                             : spdlog::basic_logger_mt("worker", flags.log_file);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
}

void add_memory_options(CLI::App& app, bitalloc::MemoryOptions& memory) {
  const auto add_size = [&](const char* flag, std::optional<int64_t>& bytes, const char* text) {
    app.add_option(flag, bytes, text)->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  };
  add_size("--memory-limit", memory.limit_bytes,
           "of the device, for weights and all that is computed, e.g. 8GiB (default: 9/10 of what "
           "is free); units that do not fit are run in parts");
  add_size("--activation-memory", memory.activation_bytes,
           "of that, for kept activations of the reference (default: a half; on CPUs a quarter)");
  add_size("--host-activation-memory", memory.host_activation_bytes,
           "of pinned host memory, for activations that do not fit on a GPU (default: a quarter of "
           "what is free); what fits nowhere is computed again");
  app.add_option("--machine-workers", memory.machine_workers,
                 "workers that share this machine's memory")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
}

void define(CLI::App& app, Flags& flags) {
  app.add_option("--coordinator", flags.service.coordinator,
                 "the coordinator's worker endpoint (ipc:// or tcp://)")
      ->required()
      ->envname("BITALLOC_COORDINATOR");
  app.add_option("--key", flags.key_file,
                 "file of this worker's key, for tcp:// (or BITALLOC_SECRET_KEY)")
      ->envname("BITALLOC_KEY");
  app.add_option("--server-public-key", flags.server_public_key_file,
                 "the coordinator's server.pub, for tcp://")
      ->envname("BITALLOC_SERVER_PUBLIC_KEY");
  app.add_option("--model-root", flags.model_roots,
                 "models are read below this folder only (repeatable; default: anywhere)")
      ->allow_extra_args(false)
      ->envname("BITALLOC_MODEL_ROOTS")
      ->delimiter(':');
  app.add_option("--device", flags.runner.device, "auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  app.add_option("--threads", flags.runner.threads, "CPU threads (0: one a core)")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  add_memory_options(app, flags.runner.memory);
  app.add_option("--credits", flags.service.credits, "units held at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--grace", flags.grace_seconds, "seconds for the running unit after SIGTERM")
      ->capture_default_str()
      ->check(CLI::Range(0, 86400));
  app.add_option("--log-file", flags.log_file, "instead of standard error");
  app.add_option("--log-level", flags.log_level, "debug, info, warn or error")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
}

int fail(const bitalloc::Error& error) {
  fmt::print(stderr, "bitalloc-worker: {}\n", error.message);
  if (!error.hint.empty()) fmt::print(stderr, "  {}\n", error.hint);
  return error.code == bitalloc::ErrorCode::kInvalidArgument ||
                 error.code == bitalloc::ErrorCode::kUnsupported
             ? 2
             : 1;
}

// Without any key, plain: the coordinator decides whether it takes that.
bitalloc::Status load_keys(Flags& flags) {
  const bool named = !flags.key_file.empty() || !flags.server_public_key_file.empty();
  if (!flags.service.coordinator.starts_with("tcp://") || !named) return {};
  BA_ASSIGN_OR_RETURN(flags.service.keys,
                      bitalloc::load_client_keys(flags.server_public_key_file, flags.key_file,
                                                 {bitalloc::KeyRole::kWorker}));
  return {};
}

int serve(Flags flags) {
  if (const auto status = load_keys(flags); !status.ok()) return fail(status.error());
  auto roots = bitalloc::ModelRoots::make(flags.model_roots, "--model-root");
  if (!roots.ok()) return fail(roots.error());
  flags.runner.model_roots = std::move(roots).value();
  auto runner = bitalloc::make_scorer_runner(flags.runner);
  if (!runner.ok()) return fail(runner.error());
  flags.service.grace = std::chrono::seconds(flags.grace_seconds);
  bitalloc::WorkerService service(flags.service, std::move(runner).value());
  g_service = &service;
  install_signal_handlers();
  const bitalloc::Status status = service.run();
  g_service = nullptr;
  return status.ok() ? 0 : fail(status.error());
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Scores units of work for a bitalloc coordinator.", "bitalloc-worker"};
  app.set_version_flag("--version", BITALLOC_VERSION);
  app.footer(kExamples);
  define(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  set_up_logging(flags);
  return serve(flags);
}
