// `bitalloc validate`: an assignment beside the reference and uniform formats, on held-out data.
#include <fmt/format.h>

#include <memory>

#include "common/model_files.h"
#include "ops/cli/answers.h"
#include "ops/cli/data.h"
#include "ops/cli/follow.h"
#include "ops/cli/output.h"
#include "ops/cli/search_inputs.h"
#include "ops/cli/validation.h"

namespace bitalloc::cli {
namespace {

struct ValidateFlags {
  std::string id;
  std::string bits;
  std::string data;
  std::string model;
  int64_t sequences = 0;
  int64_t length = 0;
};

constexpr const char* kExamples = R"(examples:
  bitalloc validate my-search --data heldout.jsonl
  bitalloc validate my-search --bits 5.0 --data heldout.jsonl --sequences 16 --length 256 --json)";

// The model directory of the search, with the weights that were searched.
Status check_model(const SearchSpec& spec, const std::string& directory) {
  auto files = inspect_model(directory);
  if (!files.ok()) {
    Error error = files.error();
    if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kInvalidArgument;
    if (error.hint.empty()) error.hint = "give the model's place with --model";
    return error;
  }
  if (files->weights_sha256 == spec.model.weights_sha256 &&
      files->config_sha256 == spec.model.config_sha256) {
    return {};
  }
  return mismatch(
      fmt::format(
          "{} is not the model that was searched: its {} differ", directory,
          files->weights_sha256 != spec.model.weights_sha256 ? "weights" : "configuration fields"),
      "--model", "give the directory of the model that was searched");
}

Result<TokenSet> held_out_tokens(const Context& context, const ValidateFlags& flags,
                                 const SearchSpec& spec) {
  BA_RETURN_IF_ERROR(make_folders(local_paths(context.home)));
  DataRequest request;
  request.file = flags.data;
  request.model = spec.model.path;
  request.cache = local_paths(context.home).cache;
  request.sequences = flags.sequences > 0 ? flags.sequences : spec.sequences;
  request.length = flags.length > 0 ? flags.length : spec.length;
  request.vocab_size = spec.model.vocab_size;
  return load_data(request);
}

// A name that says what it is; empty (the service chooses) when it would be too long.
std::string validation_id(const std::string& search, const SearchSpec& spec) {
  const std::string id =
      fmt::format("{}.validation-{}", search, fingerprint(spec).sha256.substr(0, 8));
  return validate_search_id(id).ok() ? id : "";
}

Result<int> run_validate(const Context& context, const ValidateFlags& flags,
                         const WorkerFlags& workers) {
  std::optional<double> bits;
  if (!flags.bits.empty()) {
    BA_ASSIGN_OR_RETURN(bits, parse_bits(flags.bits, "--bits"));
  }
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, flags.id, ""));
  BA_ASSIGN_OR_RETURN(const Json assignment, answers.assignment(bits, {}));
  BA_ASSIGN_OR_RETURN(const Checkpoint* found, answers.checkpoint());
  Checkpoint search = *found;
  if (!flags.model.empty()) {
    search.spec.model.path = std::filesystem::absolute(flags.model).string();
  }
  BA_RETURN_IF_ERROR(check_model(search.spec, search.spec.model.path));
  BA_ASSIGN_OR_RETURN(const TokenSet tokens, held_out_tokens(context, flags, search.spec));
  BA_ASSIGN_OR_RETURN(const SearchSpec spec, validation_spec(search, assignment, tokens));

  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_ASSIGN_OR_RETURN(const Json status,
                      submit_spec(*connection, validation_id(flags.id, spec), spec,
                                  {ids_to_blob(tokens), mask_to_blob(tokens)}));
  BA_ASSIGN_OR_RETURN(const auto id, json_field<std::string>(status, "id", "status"));
  if (status.value("state", "") != "done") {
    BA_RETURN_IF_ERROR(put_first(*connection, id));
    BA_RETURN_IF_ERROR(want_workers(*connection, workers));
    BA_ASSIGN_OR_RETURN(const Ending ending, follow(*connection, id, "the same command resumes"));
    if (ending.kind != Ending::Kind::kDone) return report_ending(context, ending);
  }
  BA_ASSIGN_OR_RETURN(const Checkpoint validation, fetch_checkpoint(*connection, id));
  if (!validation.table.complete()) return internal_error("the validation has holes");
  const Json rows = validation_rows(validation, tokens);
  if (context.json) {
    print_json(rows);
  } else {
    print_line(context, validation_text(rows));
  }
  return kExitOk;
}

}  // namespace

void add_validate_command(CommandLine& line) {
  auto flags = std::make_shared<ValidateFlags>();
  auto workers = std::make_shared<WorkerFlags>();
  const Context& context = line.context;
  CLI::App* command = add_command(line, line.app, "validate",
                                  "held-out KL, perplexity and top-1 agreement", kExamples);
  command->add_option("ID", flags->id, "the search")->required();
  command->add_option("--data", flags->data, "held-out text, JSONL or token file")->required();
  command->add_option("--bits", flags->bits, "effective bits (default: those of the search)");
  command->add_option("--model", flags->model, "the model, when it has moved");
  command->add_option("--sequences", flags->sequences, "at most so many (default: the search's)")
      ->check(CLI::PositiveNumber);
  command->add_option("--length", flags->length, "tokens a sequence (default: the search's)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 22));
  add_worker_options(command, *workers);
  on_run(line, command, [=, &context] { return run_validate(context, *flags, *workers); });
}

}  // namespace bitalloc::cli
