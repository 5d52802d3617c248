// `bitalloc solve`: the solver alone.
#include <fmt/format.h>

#include <memory>

#include "common/files.h"
#include "ops/cli/output.h"
#include "solver/reprover.h"
#include "solver/solve_file.h"

namespace bitalloc::cli {
namespace {

constexpr const char* kExamples = R"(example:
  echo '{"bits": [[8, 4.5], [8, 4.5]], "width": [128, 128],
         "score": [[0.1, 0.9], [0.2, 0.3]], "budgets": [6.25]}' > instance.json
  bitalloc solve instance.json

beside "budgets" a file may have "rows", "pins", "exclude", "groups", "pairs", "max_distinct" with
"labels" and "max_changes" with "deployed": ops/cli/README.md says what they hold)";

// What CBC gets to prove each answer again, after it has been found.
constexpr double kCheckSeconds = 0.02;

// The document is the answer, with and without --json.
Result<int> run_solve(const std::string& file) {
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(file));
  auto parsed = parse_solve_file(text);
  if (!parsed.ok()) return std::move(parsed).error().with_context(file);
  BA_ASSIGN_OR_RETURN(auto solutions, solve_budgets(*parsed));
  for (size_t k = 0; k < solutions.size(); ++k) {
    if (solutions[k].cbc == CbcVerdict::kNotAsked) {
      solutions[k].cbc =
          prove_again(parsed->problem, constraints_of(*parsed, k), solutions[k], kCheckSeconds);
    }
  }
  BA_ASSIGN_OR_RETURN(const Json json, parse_json(solutions_to_json(*parsed, solutions), file));
  print_json(json);
  return kExitOk;
}

}  // namespace

void add_solve_command(CommandLine& line) {
  auto file = std::make_shared<std::string>();
  CLI::App* command =
      add_command(line, line.app, "solve", "the solver alone, on any instance", kExamples, false);
  command->add_option("FILE", *file, "a JSON instance")->required();
  on_run(line, command, [file] { return run_solve(*file); });
}

}  // namespace bitalloc::cli
