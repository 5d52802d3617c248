#include "ops/cli/follow.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <thread>

#include "common/tensor_parallel.h"
#include "ops/cli/interrupt.h"
#include "ops/cli/output.h"
#include "ops/cli/progress.h"

namespace bitalloc::cli {
namespace {

Ending ending_of(const Json& status, const std::string& id) {
  const std::string state = status.value("state", "");
  if (state == "done") return {};
  if (state == "cancelled") {
    return {Ending::Kind::kFailed,
            cancelled(fmt::format("search '{}' was cancelled", id), "",
                      "the same search or submit command goes on where it stopped")};
  }
  Error error = internal_error(fmt::format("search '{}' failed", id));
  if (status.contains("error") && status["error"].is_object()) {
    error = error_from_json(status["error"]);
    error.message = fmt::format("search '{}' failed: {}", id, error.message);
  }
  return {Ending::Kind::kFailed, error};
}

}  // namespace

Result<Ending> follow(Connection& connection, const std::string& id,
                      const std::string& how_to_resume) {
  Progress progress(use_color());
  Json last;
  const auto show = [&](const Json& status) {
    last = status;
    progress.show(status);
    return true;
  };
  Result<Json> status = connection.watch(id, show);
  progress.finish();
  if (status.ok()) return ending_of(*status, id);
  if (!interrupted()) return status.error();
  const Json units = last.is_object() ? last.value("units", Json::object()) : Json::object();
  return Ending{Ending::Kind::kDetached,
                cancelled(fmt::format("interrupted with {} of {} units of search '{}' done",
                                      units.value("done", 0), units.value("total", 0), id),
                          "", "nothing is lost: " + how_to_resume)};
}

int report_ending(const Context& context, const Ending& ending) {
  if (ending.kind == Ending::Kind::kDone) return kExitOk;
  print_error(context, ending.error);
  return ending.kind == Ending::Kind::kDetached ? kExitDetached : kExitFailed;
}

Result<Json> submit_spec(Connection& connection, const std::string& id, const SearchSpec& spec,
                         std::vector<std::string> blobs, const Rank& rank) {
  BA_ASSIGN_OR_RETURN(
      wire::Message reply,
      connection.request(
          "submit",
          {{"id", id}, {"spec", to_json(spec)}, {"priority", rank.priority}, {"share", rank.share}},
          std::move(blobs)));
  return std::move(reply.header);
}

Status put_first(Connection& connection, const std::string& id) {
  if (connection.local() == nullptr) return {};
  BA_ASSIGN_OR_RETURN(const Json reply, connection.ask("list"));
  BA_ASSIGN_OR_RETURN(const Json searches, json_field<Json>(reply, "searches", "reply"));
  const std::set<std::string> waiting = {"queued", "running"};
  int64_t highest = -1;  // priority of the others
  for (const Json& other : searches) {
    if (other.value("id", "") == id || !waiting.contains(other.value("state", ""))) continue;
    highest = std::max<int64_t>(highest, other.value("priority", 0));
  }
  if (highest < 0) return {};
  BA_RETURN_IF_ERROR(connection.ask("reprioritize", {{"id", id}, {"priority", highest + 1}}));
  return {};
}

void add_worker_options(CLI::App* command, WorkerFlags& flags) {
  command->add_option("--workers", flags.workers, "local workers")
      ->envname("BITALLOC_WORKERS")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--threads", flags.threads, "threads a process (default: cores / processes)")
      ->envname("BITALLOC_THREADS")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option(
          "--tp", flags.tensor_parallel,
          "processes a local worker, each with a shard of the model on a device of its own")
      ->envname("BITALLOC_TP")
      ->check(CLI::Range(1, kMaxTensorParallel))
      ->capture_default_str();
  command->add_option("--device", flags.device, "cpu, cuda or auto")
      ->envname("BITALLOC_DEVICE")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->capture_default_str();
  const auto add_size = [&](const char* flag, const char* variable, std::string& size,
                            const char* text) {
    // Checked here, so that a wrong size is a wrong flag and not a worker that does not start.
    const auto check = [](const std::string& given) {
      std::string bytes = given;
      if (bytes.starts_with('-')) return std::string("a size is not negative");
      return CLI::AsSizeValue(/*kb_is_1000=*/true)(bytes);
    };
    command->add_option(flag, size, text)->envname(variable)->check(CLI::Validator(check, "SIZE"));
  };
  add_size("--memory-limit", "BITALLOC_MEMORY_LIMIT", flags.memory_limit,
           "of the device, that a worker may use, e.g. 8GiB (default: 9/10 of what is free)");
  add_size("--activation-memory", "BITALLOC_ACTIVATION_MEMORY", flags.activation_memory,
           "of that, for kept activations of the reference; what does not fit is computed again");
  add_size("--host-activation-memory", "BITALLOC_HOST_ACTIVATION_MEMORY",
           flags.host_activation_memory,
           "of pinned host memory, for those that do not fit on a GPU");
}

Status want_workers(Connection& connection, const WorkerFlags& flags) {
  if (connection.local() == nullptr) return {};
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int processes = flags.workers * flags.tensor_parallel;
  const int threads = flags.threads > 0 ? flags.threads : std::max(1, cores / processes);
  return connection.local()->want_workers({flags.workers, threads, flags.tensor_parallel,
                                           flags.device, flags.memory_limit,
                                           flags.activation_memory, flags.host_activation_memory});
}

}  // namespace bitalloc::cli
