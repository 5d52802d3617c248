// `bitalloc validate`: an assignment beside the reference and uniform formats, on held-out data.
#include <fmt/format.h>

#include <memory>

#include "ops/cli/answers.h"
#include "ops/cli/follow.h"
#include "ops/cli/output.h"
#include "ops/cli/search_inputs.h"
#include "ops/cli/validation.h"
#include "ops/cli/validation_job.h"

namespace bitalloc::cli {
namespace {

struct ValidateFlags {
  std::string id;
  std::string bits;
  ValidationFlags run;
};

constexpr const char* kExamples = R"(examples:
  bitalloc validate my-search --data heldout.jsonl
  bitalloc validate my-search --bits 5.0 --data heldout.jsonl --sequences 16 --length 256 --json)";

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
  BA_RETURN_IF_ERROR(use_model(flags.run, search.spec));
  BA_ASSIGN_OR_RETURN(const TokenSet tokens, validation_tokens(context, flags.run, search.spec));
  BA_ASSIGN_OR_RETURN(const SearchSpec spec, validation_spec(search, assignment, tokens));

  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_ASSIGN_OR_RETURN(const ValidationRun run,
                      run_validation(*connection, flags.id, spec, tokens, workers));
  if (!run.checkpoint) return report_ending(context, run.ending);
  const Json rows = validation_rows(*run.checkpoint, tokens);
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
  add_validation_options(command, flags->run, "held-out text, JSONL or token file");
  command->add_option("--bits", flags->bits, "effective bits (default: those of the search)");
  command
      ->add_option("--sequences", flags->run.sequences, "at most so many (default: the search's)")
      ->check(CLI::PositiveNumber);
  command->add_option("--length", flags->run.length, "tokens a sequence (default: the search's)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 22));
  add_worker_options(command, *workers);
  on_run(line, command, [=, &context] { return run_validate(context, *flags, *workers); });
}

}  // namespace bitalloc::cli
