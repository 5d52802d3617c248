// `bitalloc export`: an assignment as a model directory that serving engines load.
#include "ops/export/export.h"

#include <fmt/format.h>

#include <memory>

#include "ops/cli/answers.h"
#include "ops/cli/output.h"
#include "ops/cli/search_inputs.h"

namespace bitalloc::cli {
namespace {

struct ExportFlags {
  std::string id;
  std::string bits;
  std::string output;
  std::string model;
  std::string checkpoint;
  bool force = false;
};

constexpr const char* kExamples = R"(examples:
  bitalloc export my-search --bits 5.4 --output ./model-kv
  bitalloc export my-search --output ./model-kv --model /models/moved --force)";

// Candidate and score of every site, in the order of the spec.
Status take_assignment(const Checkpoint& checkpoint, const Json& assignment,
                       ExportRequest& request) {
  const SearchSpec& spec = checkpoint.spec;
  for (size_t i = 0; i < spec.sites.size(); ++i) {
    const Json& site = assignment.at("sites").at(i);
    BA_ASSIGN_OR_RETURN(const Candidate candidate,
                        parse_candidate(site.at("candidate").get<std::string>()));
    request.assignment.push_back(candidate);
    for (size_t j = 0; j < spec.candidates.size(); ++j) {
      if (spec.candidates[j] != candidate) continue;
      request.scores.push_back(
          checkpoint.table.score(static_cast<int64_t>(i), CandidateIndex(static_cast<int64_t>(j))));
    }
  }
  return {};
}

Result<ExportRequest> make_request(const Context& context, const ExportFlags& flags) {
  std::optional<double> bits;
  if (!flags.bits.empty()) {
    BA_ASSIGN_OR_RETURN(bits, parse_bits(flags.bits, "--bits"));
  }
  if (flags.id.empty() && flags.checkpoint.empty()) {
    return invalid_argument("name a search, or give --checkpoint FILE", "ID");
  }
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, flags.id, flags.checkpoint));
  BA_ASSIGN_OR_RETURN(const Json assignment, answers.assignment(bits, {}));
  BA_ASSIGN_OR_RETURN(const Checkpoint* checkpoint, answers.checkpoint());
  ExportRequest request;
  request.model_dir = flags.model.empty() ? checkpoint->spec.model.path : flags.model;
  request.output_dir = flags.output;
  request.force = flags.force;
  request.spec = checkpoint->spec;
  request.amax = checkpoint->table.amax();
  request.search_id = checkpoint->id;
  request.fingerprint = checkpoint->fingerprint.sha256;
  request.budget_bits = bits.value_or(checkpoint->spec.effective_bits);
  BA_RETURN_IF_ERROR(take_assignment(*checkpoint, assignment, request));
  return request;
}

Result<int> run_export(const Context& context, const ExportFlags& flags) {
  BA_ASSIGN_OR_RETURN(const ExportRequest request, make_request(context, flags));
  BA_ASSIGN_OR_RETURN(const ExportSummary summary, export_model(request));
  for (const std::string& warning : summary.warnings) print_note("warning: " + warning);
  if (context.json) {
    print_json({{"directory", summary.directory.string()},
                {"files_linked", summary.files_linked},
                {"files_copied", summary.files_copied},
                {"scales", summary.scales},
                {"effective_bits", summary.effective_bits},
                {"warnings", summary.warnings}});
  } else {
    print_line(context, fmt::format("{}: {} effective bits, {} scales, {} files linked, {} copied",
                                    summary.directory.string(), bits_text(summary.effective_bits),
                                    summary.scales, summary.files_linked, summary.files_copied));
  }
  return kExitOk;
}

}  // namespace

void add_export_command(CommandLine& line) {
  auto flags = std::make_shared<ExportFlags>();
  const Context& context = line.context;
  CLI::App* command =
      add_command(line, line.app, "export", "write an assignment as a model directory", kExamples);
  command->add_option("ID", flags->id, "the search");
  command->add_option("--checkpoint", flags->checkpoint, "take the search from this file instead");
  command->add_option("--bits", flags->bits, "effective bits (default: those of the search)");
  command->add_option("--output", flags->output, "the directory to make")->required();
  command->add_option("--model", flags->model, "the model, when it has moved");
  command->add_flag("--force", flags->force, "replace an earlier export");
  on_run(line, command, [flags, &context] { return run_export(context, *flags); });
}

}  // namespace bitalloc::cli
