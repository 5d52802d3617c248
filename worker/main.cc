// bitalloc-worker: scores units for a coordinator until it is told to stop.
#include <fmt/format.h>
#include <signal.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <tuple>

#include "common/tensor_parallel.h"
#include "common/zmq/keys.h"
#include "worker/group.h"
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
  bitalloc-worker --coordinator tcp://10.0.0.1:7702 --tp 2 --rank 0 --rendezvous 10.0.0.5:7710
  bitalloc-worker --tp 2 --rank 1 --rendezvous 10.0.0.5:7710      (on any host; one process a rank)

It stops on SIGTERM after the unit it runs (at most --grace seconds), at once on a second one.
Ranks above 0 stop with rank 0; when any rank is lost, all of them end with exit code 1.
)";

constexpr int kBroken = 1;

struct Flags {
  bitalloc::ServiceOptions service;
  bitalloc::ScorerRunnerOptions runner;
  bitalloc::GroupOptions group;
  double collective_timeout_seconds = 20;
  std::string key_file;
  std::string server_public_key_file;
  std::vector<std::string> model_roots;
  std::string log_file;
  std::string log_level = "info";
  int grace_seconds = 30;
};

std::atomic<bitalloc::WorkerService*> g_service = nullptr;  // for handlers of signals and faults

volatile sig_atomic_t g_signals = 0;

void on_signal(int) {
  g_signals = g_signals + 1;
  if (g_signals > 1) ::_exit(130);
  if (auto* service = g_service.load(); service != nullptr) service->request_stop();
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

void define_group(CLI::App& app, Flags& flags) {
  app.add_option("--tp", flags.group.size,
                 "ranks that share one model: one process, one device each")
      ->envname("BITALLOC_TP")
      ->capture_default_str()
      ->check(CLI::Range(1, bitalloc::kMaxTensorParallel));
  app.add_option("--rank", flags.group.rank, "of this process, 0 … tp − 1")
      ->envname("BITALLOC_RANK")
      ->capture_default_str()
      ->check(CLI::Range(0, bitalloc::kMaxTensorParallel - 1));
  app.add_option("--rendezvous", flags.group.rendezvous,
                 "where rank 0 listens for the others: HOST:PORT, or file:PATH on one machine")
      ->envname("BITALLOC_RENDEZVOUS");
  app.add_option("--collective-timeout", flags.collective_timeout_seconds,
                 "seconds that ranks wait for the slowest one before all of them end")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
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
                 "the coordinator's worker endpoint (ipc:// or tcp://); of rank 0")
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
  define_group(app, flags);
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

// Ends without destructors: a thread may wait for a rank that is lost.
[[noreturn]] void end_at_once(int code) {
  spdlog::shutdown();
  std::fflush(nullptr);
  ::_exit(code);
}

bitalloc::Status check(const Flags& flags) {
  const auto& [size, rank, rendezvous] =
      std::tie(flags.group.size, flags.group.rank, flags.group.rendezvous);
  if (rank >= size) {
    return bitalloc::invalid_argument(
        fmt::format("--rank {} of --tp {}: ranks are 0 to {}", rank, size, size - 1), "--rank");
  }
  if (size > 1 && rendezvous.empty()) {
    return bitalloc::invalid_argument("--tp needs --rendezvous: where the ranks find one another",
                                      "--rendezvous");
  }
  if (rank == 0 && flags.service.coordinator.empty()) {
    return bitalloc::invalid_argument("--coordinator is required", "--coordinator");
  }
  return {};
}

// Serves the coordinator with `runner`. `broken`: set when the ranks' group is of no more use.
int serve(const Flags& flags, std::unique_ptr<bitalloc::UnitRunner> runner,
          const std::atomic<bool>& broken) {
  bitalloc::WorkerService service(flags.service, std::move(runner));
  g_service = &service;
  install_signal_handlers();
  if (broken || g_signals > 0) service.request_stop();  // said before there was a service
  const bitalloc::Status status = service.run();
  g_service = nullptr;
  if (broken) end_at_once(kBroken);
  return status.ok() ? 0 : fail(status.error());
}

int serve_alone(const Flags& flags) {
  auto runner = bitalloc::make_scorer_runner(flags.runner);
  if (!runner.ok()) return fail(runner.error());
  return serve(flags, std::move(runner).value(), false);
}

// The first SIGTERM is for rank 0, which stops all when its unit is done; whoever stops a group
// tells every process.
void leave_stopping_to_rank_0() {
  struct sigaction action = {};
  action.sa_handler = on_signal;  // without a service: the first is nothing, the second the end
  for (const int number : {SIGTERM, SIGINT}) ::sigaction(number, &action, nullptr);
}

int serve_as_a_rank(Flags flags) {
  const auto device =
      bitalloc::choose_device(flags.runner.device, flags.group.rank, flags.group.size);
  if (!device.ok()) return fail(device.error());
  flags.runner.device = *device;
  if (device->starts_with("cuda:")) flags.group.cuda_device = std::stoi(device->substr(5));
  auto group = bitalloc::RankGroup::join(flags.group);
  if (!group.ok()) return fail(group.error());
  spdlog::info("rank {} of {}", flags.group.rank, flags.group.size);
  flags.runner.group = &(*group)->collective();
  auto runner = bitalloc::make_scorer_runner(flags.runner);
  if (!runner.ok()) return fail(runner.error());
  if (flags.group.rank > 0) {
    const bitalloc::Status status = bitalloc::follow(**group, **runner);
    if (status.ok()) return 0;
    spdlog::error("{}; this rank ends", status.error().message);
    end_at_once(kBroken);
  }
  std::atomic<bool> broken{false};
  auto leader = bitalloc::make_group_runner(**group, std::move(runner).value(), [&broken] {
    broken = true;
    if (auto* service = g_service.load(); service != nullptr) service->request_stop();
  });
  return serve(flags, std::move(leader), broken);
}

int start(Flags flags) {
  if (const auto good = check(flags); !good.ok()) return fail(good.error());
  if (const auto status = load_keys(flags); !status.ok()) return fail(status.error());
  auto roots = bitalloc::ModelRoots::make(flags.model_roots, "--model-root");
  if (!roots.ok()) return fail(roots.error());
  flags.runner.model_roots = std::move(roots).value();
  flags.service.grace = std::chrono::seconds(flags.grace_seconds);
  flags.group.collective_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(1000 * flags.collective_timeout_seconds));
  ::signal(SIGPIPE, SIG_IGN);  // Gloo writes to sockets whose other end may have gone
  if (flags.group.size == 1) return serve_alone(flags);
  leave_stopping_to_rank_0();
  return serve_as_a_rank(std::move(flags));
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
  return start(std::move(flags));
}
