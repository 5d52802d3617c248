// `bitalloc search` and `bitalloc submit`: the same search, run here to its end or handed over.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "common/files.h"
#include "common/fingerprint.h"
#include "common/plan.h"
#include "ops/cli/answers.h"
#include "ops/cli/follow.h"
#include "ops/cli/output.h"
#include "ops/cli/search_inputs.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSearchExamples = R"(examples:
  bitalloc search --model ./SmolLM2-135M-Instruct --data score.jsonl
  bitalloc search --model ./m --data tokens.safetensors --bits 5.0 --workers 4 --output run1
  bitalloc search --model ./m --data score.jsonl --memory 8GiB --context 32768 --sequences 16
  bitalloc search --model ./m --data text.txt --sequences 16 --length 256 \
      --candidates fp8_e4m3,nvfp4 --disabled-layers '*.layers.0.*'
The same command again goes on where it stopped.)";

constexpr const char* kSubmitExamples = R"(examples:
  bitalloc submit --server ipc:///run/bitalloc/client.sock --model /models/m --data score.jsonl
  bitalloc submit --model ./m --data score.jsonl --dry-run)";

struct Submission {
  bool follow = false;
  bool dry_run = false;
  Rank rank;
};

void add_input_options(CLI::App* c, SearchFlags& f) {
  c->add_option("--model", f.model, "Hugging Face model directory")->required();
  c->add_option("--data", f.data, "text, JSONL or token file (.safetensors)")->required();
  c->add_option("--recipe", f.recipe, "name or file; see `bitalloc recipes`")
      ->capture_default_str();
  c->add_option("--bits", f.bits, "budget: effective bits an element (default: the recipe's)");
  c->add_option("--sequences", f.sequences,
                "at most so many sequences of the data; with --memory those of the cache")
      ->check(CLI::PositiveNumber);
  c->add_option("--score-sequences", f.score_sequences,
                "at most so many sequences of the data, with or without --memory")
      ->check(CLI::PositiveNumber);
  c->add_option("--length", f.length, "at most so many tokens a sequence")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 22));
  c->add_option("--dtype", f.dtype, "of the reference: float32 or bfloat16")
      ->envname("BITALLOC_DTYPE")
      ->capture_default_str();
  c->add_option("--candidates", f.candidates, "K/V pairs, comma-separated; see `bitalloc formats`");
  c->add_option("--encoding", f.encoding, "of NVFP4: served or modelopt");
  c->add_option("--scale-policy", f.scale_policy, "constant or calibrated");
  c->add_option("--calib", f.calibration, "data for calibrated scales (default: --data)");
  c->add_option("--batch", f.batch, "sequences a scoring batch")->check(CLI::PositiveNumber);
  c->add_option("--sites-per-unit", f.sites_per_unit, "layers a unit of work")
      ->check(CLI::PositiveNumber);
  c->add_option("--disabled-layers", f.disabled_layers,
                "pattern of attention modules to leave alone (repeatable)");
  c->add_option("--id", f.id, "name of the search (default: from model and fingerprint)");
  add_memory_options(c, f.memory);
}

Status require_same(const Checkpoint& held, const SearchSpec& spec, const fs::path& file) {
  return same_fingerprint(fingerprint(spec), held.fingerprint,
                          fmt::format("checkpoint file '{}'", file.string()));
}

// What --checkpoint, or an earlier run's --output, holds of this very search.
Result<std::optional<Checkpoint>> read_start(const SearchFlags& flags, const SearchSpec& spec) {
  std::optional<Checkpoint> start;
  std::error_code ignored;
  const fs::path kept = fs::path(flags.output) / "checkpoint.json";
  if (!flags.output.empty() && fs::exists(kept, ignored)) {
    BA_ASSIGN_OR_RETURN(start, read_checkpoint(kept));
    BA_RETURN_IF_ERROR(require_same(*start, spec, kept));
  }
  if (!flags.checkpoint.empty()) {
    BA_ASSIGN_OR_RETURN(start, read_checkpoint(flags.checkpoint));
    BA_RETURN_IF_ERROR(require_same(*start, spec, flags.checkpoint));
  }
  return start;
}

Status check_output(const std::string& output) {
  if (output.empty()) return {};
  std::error_code error;
  fs::create_directories(output, error);
  if (!error && fs::is_directory(output, error)) return {};
  return invalid_argument(fmt::format("--output: cannot make the folder {}", output), "--output");
}

// The status after the search is in the service, with what `start` knows of it.
Result<Json> submit_search(Connection& connection, const SearchFlags& flags,
                           const SearchInputs& inputs, const std::optional<Checkpoint>& start,
                           const Rank& rank) {
  std::string id = flags.id;
  if (start.has_value()) {
    Checkpoint named = *start;
    if (!id.empty()) named.id = id;
    id = named.id;
    BA_RETURN_IF_ERROR(connection.request("import", Json::object(), {serialize(named)}));
  }
  return submit_spec(connection, id, inputs.spec, submit_blobs(inputs), rank);
}

// result.json and checkpoint.json in `output`.
Status save_output(Connection& connection, const std::string& id, const Json& assignment,
                   const fs::path& output) {
  BA_ASSIGN_OR_RETURN(const wire::Message reply, connection.request("checkpoint", {{"id", id}}));
  if (reply.blobs.size() != 1) return internal_error("the service sent no checkpoint");
  BA_RETURN_IF_ERROR(write_file_atomically(output / "checkpoint.json", reply.blobs[0]));
  return write_file_atomically(output / "result.json", assignment.dump(2) + "\n");
}

Status finish_search(Connection& connection, const Context& context, const SearchFlags& flags,
                     const std::string& id, const SearchSpec& spec) {
  AllocateOptions options;
  options.limits.memory = spec.memory;
  Json header = to_json(options);
  header["id"] = id;
  header["effective_bits"] = spec.effective_bits;
  BA_ASSIGN_OR_RETURN(const Json reply, connection.ask("assignment", std::move(header)));
  BA_ASSIGN_OR_RETURN(const Json assignment, json_field<Json>(reply, "assignment", "reply"));
  if (!flags.output.empty()) {
    BA_RETURN_IF_ERROR(save_output(connection, id, assignment, flags.output));
  }
  if (context.json) {
    print_json(assignment);
    return {};
  }
  print_line(context, assignment_text(assignment));
  if (connection.local() != nullptr) {
    print_line(context, fmt::format("scores kept in {}",
                                    connection.local()->paths().checkpoint(id).string()));
  }
  if (!flags.output.empty()) {
    print_line(context, fmt::format("saved to {}", fs::absolute(flags.output).string()));
  }
  print_line(context, fmt::format("another budget: bitalloc rebudget {} --bits 5.0", id));
  return {};
}

Json plan_json(const SearchInputs& inputs) {
  const SearchSpec& spec = inputs.spec;
  return {{"fingerprint", fingerprint(spec).sha256},
          {"sites", spec.sites.size()},
          {"disabled_sites", spec.disabled_sites.size()},
          {"candidates", spec.candidates.size()},
          {"sequences", spec.sequences},
          {"length", spec.length},
          {"batch_sequences", spec.batch_sequences},
          {"sites_per_unit", spec.sites_per_unit},
          {"units", plan_units(spec).size()},
          {"forward_passes", forward_passes(spec)},
          {"worker_memory_bytes", worker_memory_bytes(inputs)}};
}

void print_plan(const Context& context, const SearchInputs& inputs) {
  const Json plan = plan_json(inputs);
  if (context.json) {
    print_json(plan);
    return;
  }
  const SearchSpec& spec = inputs.spec;
  print_line(context,
             fmt::format("{} layers × {} candidates, {} sequences × {} tokens", spec.sites.size(),
                         spec.candidates.size(), spec.sequences, spec.length));
  print_line(context,
             fmt::format("{} units ({} sequences × {} layers each)", plan["units"].get<int64_t>(),
                         spec.batch_sequences, spec.sites_per_unit));
  print_line(context, fmt::format("work of {:.1f} forward passes of one sequence",
                                  plan["forward_passes"].get<double>()));
  print_line(context, fmt::format("about {:.2f} GiB of memory a worker",
                                  plan["worker_memory_bytes"].get<double>() / (1LL << 30)));
}

void describe(const SearchInputs& inputs) {
  const SearchSpec& spec = inputs.spec;
  print_note(fmt::format("{}: {} layers × {} candidates, {} sequences × {} tokens, {} units",
                         spec.model.name, spec.sites.size(), spec.candidates.size(), spec.sequences,
                         spec.length, plan_units(spec).size()));
}

Result<int> run_search(const Context& context, const SearchFlags& flags,
                       const WorkerFlags& workers) {
  BA_ASSIGN_OR_RETURN(const SearchInputs inputs, read_search_inputs(flags, context));
  BA_ASSIGN_OR_RETURN(const auto start, read_start(flags, inputs.spec));
  BA_RETURN_IF_ERROR(check_output(flags.output));
  describe(inputs);
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_ASSIGN_OR_RETURN(const Json status, submit_search(*connection, flags, inputs, start, {}));
  BA_ASSIGN_OR_RETURN(const auto id, json_field<std::string>(status, "id", "status"));
  if (status.value("state", "") == "paused") {
    BA_RETURN_IF_ERROR(connection->ask("resume", {{"id", id}}));
  }
  if (status.value("state", "") != "done") {
    BA_RETURN_IF_ERROR(put_first(*connection, id));
    BA_RETURN_IF_ERROR(want_workers(*connection, workers));
    BA_ASSIGN_OR_RETURN(const Ending ending,
                        follow(*connection, id,
                               connection->local() != nullptr
                                   ? "the same command resumes"
                                   : "the service goes on; the same command follows it"));
    if (ending.kind != Ending::Kind::kDone) return report_ending(context, ending);
  }
  BA_RETURN_IF_ERROR(finish_search(*connection, context, flags, id, inputs.spec));
  return kExitOk;
}

Result<int> run_submit(const Context& context, const SearchFlags& flags,
                       const Submission& submission, const WorkerFlags& workers) {
  BA_ASSIGN_OR_RETURN(const SearchInputs inputs, read_search_inputs(flags, context));
  if (submission.dry_run) {
    print_plan(context, inputs);
    return kExitOk;
  }
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_ASSIGN_OR_RETURN(const Json status,
                      submit_search(*connection, flags, inputs, std::nullopt, submission.rank));
  BA_ASSIGN_OR_RETURN(const auto id, json_field<std::string>(status, "id", "status"));
  if (submission.follow) {
    BA_RETURN_IF_ERROR(want_workers(*connection, workers));
    BA_ASSIGN_OR_RETURN(const Ending ending,
                        follow(*connection, id, "`bitalloc watch " + id + "` follows it"));
    if (ending.kind != Ending::Kind::kDone) return report_ending(context, ending);
    BA_RETURN_IF_ERROR(finish_search(*connection, context, flags, id, inputs.spec));
    return kExitOk;
  }
  if (context.json) {
    print_json(status);
  } else {
    print_line(context, fmt::format("{} {}", id, status.value("state", "")));
    if (connection->local() != nullptr) {
      print_note("it runs while `bitalloc serve` (or any search) is up on this home");
    }
  }
  return kExitOk;
}

}  // namespace

void add_search_commands(CommandLine& line) {
  auto flags = std::make_shared<SearchFlags>();  // shared by the two commands' handlers
  auto workers = std::make_shared<WorkerFlags>();
  auto submission = std::make_shared<Submission>();
  const Context& context = line.context;

  CLI::App* search = add_command(line, line.app, "search",
                                 "search a model's K/V formats, start to end", kSearchExamples);
  add_input_options(search, *flags);
  add_worker_options(search, *workers);
  search->add_option("--output", flags->output, "folder for result.json and checkpoint.json");
  search->add_option("--checkpoint", flags->checkpoint, "start from the results in this file");
  on_run(line, search, [=, &context] {
    flags->device = workers->device;
    flags->tensor_parallel = workers->tensor_parallel;
    return run_search(context, *flags, *workers);
  });

  CLI::App* submit =
      add_command(line, line.app, "submit", "hand a search to a service", kSubmitExamples);
  add_input_options(submit, *flags);
  add_worker_options(submit, *workers);
  submit->add_option("--priority", submission->rank.priority, "higher goes first")
      ->capture_default_str();
  submit
      ->add_option("--share", submission->rank.share,
                   "of the workers' time, relative to other searches of this priority")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 100.0));
  submit->add_flag("--follow", submission->follow, "stay until it ends");
  submit->add_flag("--dry-run", submission->dry_run, "only say what it would cost");
  on_run(line, submit, [=, &context] {
    flags->device = workers->device;
    flags->tensor_parallel = workers->tensor_parallel;
    return run_submit(context, *flags, *submission, *workers);
  });
}

}  // namespace bitalloc::cli
