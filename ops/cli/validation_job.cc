#include "ops/cli/validation_job.h"

#include <fmt/format.h>

#include "common/model_files.h"
#include "ops/cli/answers.h"
#include "ops/cli/data.h"

namespace bitalloc::cli {
namespace {

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

// A name that says what it is; empty (the service chooses) when it would be too long.
std::string validation_id(const std::string& search, const SearchSpec& spec) {
  const std::string id =
      fmt::format("{}.validation-{}", search, fingerprint(spec).sha256.substr(0, 8));
  return validate_search_id(id).ok() ? id : "";
}

}  // namespace

void add_validation_options(CLI::App* command, ValidationFlags& flags, const std::string& data) {
  command->add_option("--data", flags.data, data)->required();
  command->add_option("--model", flags.model, "the model, when it has moved");
}

Status use_model(const ValidationFlags& flags, SearchSpec& spec) {
  if (!flags.model.empty()) spec.model.path = std::filesystem::absolute(flags.model).string();
  return check_model(spec, spec.model.path);
}

Result<TokenSet> validation_tokens(const Context& context, const ValidationFlags& flags,
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

Result<ValidationRun> run_validation(Connection& connection, const std::string& search,
                                     const SearchSpec& spec, const TokenSet& tokens,
                                     const WorkerFlags& workers) {
  BA_ASSIGN_OR_RETURN(const Json status, submit_spec(connection, validation_id(search, spec), spec,
                                                     {ids_to_blob(tokens), mask_to_blob(tokens)}));
  BA_ASSIGN_OR_RETURN(const auto id, json_field<std::string>(status, "id", "status"));
  ValidationRun run;
  if (status.value("state", "") != "done") {
    BA_RETURN_IF_ERROR(put_first(connection, id));
    BA_RETURN_IF_ERROR(want_workers(connection, workers));
    BA_ASSIGN_OR_RETURN(run.ending, follow(connection, id, "the same command resumes"));
    if (run.ending.kind != Ending::Kind::kDone) return run;
  }
  BA_ASSIGN_OR_RETURN(run.checkpoint, fetch_checkpoint(connection, id));
  if (!run.checkpoint->table.complete()) return internal_error("the validation has holes");
  return run;
}

}  // namespace bitalloc::cli
