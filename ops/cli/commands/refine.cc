// `bitalloc refine`: the assignment of a budget and its neighbours measured as wholes, and the best
// of them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "ops/cli/answers.h"
#include "ops/cli/limit_flags.h"
#include "ops/cli/output.h"
#include "ops/cli/search_inputs.h"
#include "ops/cli/validation.h"
#include "ops/cli/validation_job.h"
#include "solver/refine.h"
#include "solver/validation_rows.h"

namespace bitalloc::cli {
namespace {

struct RefineFlags {
  std::string id;
  std::string bits;
  std::vector<std::string> pins;
  LimitFlags limits;
  ValidationFlags data;
  bool held_out = false;
  RefineOptions search;
};

constexpr const char* kExamples = R"(examples:
  bitalloc refine my-search --data score.jsonl               # the file that was searched with
  bitalloc refine my-search --bits 5.0 --data score.jsonl --neighbours 16 --rounds 8 --json
  bitalloc refine my-search --memory 8GiB --context 32768 --data heldout.jsonl --held-out)";

// A search, what is asked of it, and where its local search starts.
struct Task {
  Checkpoint search;
  Json assignment;
  AllocationProblem asked;
  std::vector<int> start;  // [site] candidate
  TokenSet tokens;
};

// The choices of an answer of allocate().
std::vector<int> choices_of(const Json& assignment, const AllocationProblem& asked) {
  std::vector<int> picked;
  for (size_t i = 0; i < asked.choices.size(); ++i) {
    const std::string name = assignment.at("sites")[i].at("candidate");
    const std::vector<Choice>& choices = asked.choices[i].choices;
    const auto at = std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) {
      return candidate_name(choice.candidate) == name;
    });
    BA_CHECK(at != choices.end(), "an assignment is made of the choices");
    picked.push_back(static_cast<int>(at - choices.begin()));
  }
  return picked;
}

Status check_tokens(const RefineFlags& flags, const Task& task) {
  if (flags.held_out || tokens_sha256(task.tokens) == task.search.spec.tokens_sha256) return {};
  return mismatch(fmt::format("--data {}: these are not the tokens that '{}' was searched with",
                              flags.data.data, task.search.id),
                  "--data", "give the file of the search, or --held-out to measure on this one");
}

// Everything that can be wrong with the input is found here, before a service is asked to work.
Result<Task> make_task(const Context& context, const RefineFlags& flags) {
  AllocateOptions options;
  double bits = 0;
  if (!flags.bits.empty()) {
    BA_ASSIGN_OR_RETURN(bits, parse_bits(flags.bits, "--bits"));
  }
  BA_ASSIGN_OR_RETURN(options.pins, parse_pins(flags.pins));
  BA_ASSIGN_OR_RETURN(options.limits, read_limits(flags.limits));
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, flags.id, ""));
  BA_ASSIGN_OR_RETURN(const Checkpoint* found, answers.checkpoint());
  const SearchSpec& spec = found->spec;
  BA_ASSIGN_OR_RETURN(const Json assignment,
                      allocate(found->id, spec, found->fingerprint, found->table, bits, options));
  BA_ASSIGN_OR_RETURN(AllocationProblem asked,
                      allocation_problem(spec, found->table, bits, options));
  std::vector<int> start = choices_of(assignment, asked);
  Task task{*found, assignment, std::move(asked), std::move(start), {}};
  BA_RETURN_IF_ERROR(use_model(flags.data, task.search.spec));
  BA_ASSIGN_OR_RETURN(task.tokens, validation_tokens(context, flags.data, task.search.spec));
  BA_RETURN_IF_ERROR(check_tokens(flags, task));
  return task;
}

std::vector<Candidate> candidates_of(const Task& task, const std::vector<int>& choice) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < choice.size(); ++i) {
    candidates.push_back(task.asked.choices[i].choices[static_cast<size_t>(choice[i])].candidate);
  }
  return candidates;
}

// "start", or what differs from it: "model.layers.3.self_attn=nvfp4/nvfp4, …".
std::string name_of(const Task& task, const std::vector<int>& choice) {
  const std::vector<Candidate> candidates = candidates_of(task, choice);
  std::string name;
  for (size_t i = 0; i < choice.size(); ++i) {
    if (choice[i] == task.start[i]) continue;
    name += fmt::format("{}{}={}", name.empty() ? "" : ", ", task.search.spec.sites[i].name,
                        candidate_name(candidates[i]));
  }
  return name.empty() ? "start" : name;
}

Result<SearchSpec> round_spec(const Task& task, const std::vector<std::vector<int>>& choices) {
  std::vector<Configuration> configurations;
  for (const std::vector<int>& choice : choices) {
    configurations.push_back({name_of(task, choice), candidates_of(task, choice)});
  }
  const int64_t batch = std::min(task.search.spec.batch_sequences, task.tokens.sequences);
  return configurations_spec(task.search, std::move(configurations), task.tokens, batch);
}

// What one round measures on a service. An ending other than done is an error, and kept.
class Rounds {
 public:
  Rounds(const Task& task, Connection& connection, const WorkerFlags& workers)
      : task_(task), connection_(connection), workers_(workers) {}

  Result<std::vector<std::vector<double>>> measure(const std::vector<std::vector<int>>& choices,
                                                   int round) {
    BA_ASSIGN_OR_RETURN(const SearchSpec spec, round_spec(task_, choices));
    print_note(fmt::format("round {}: {} assignments", round, choices.size()));
    BA_ASSIGN_OR_RETURN(const ValidationRun run,
                        run_validation(connection_, task_.search.id, spec, task_.tokens, workers_));
    ending_ = run.ending;
    if (!run.checkpoint) return run.ending.error;
    std::vector<std::vector<double>> sums;
    for (size_t row = 0; row < choices.size(); ++row) {
      SequenceSums found =
          run.checkpoint->table.sequences(static_cast<int64_t>(row), CandidateIndex(0));
      sums.push_back(std::move(found.sums));
      tokens_ = std::move(found.tokens);
    }
    return sums;
  }

  const Ending& ending() const { return ending_; }
  const std::vector<double>& tokens() const { return tokens_; }  // [sequence], scored

 private:
  const Task& task_;
  Connection& connection_;
  const WorkerFlags& workers_;
  Ending ending_;
  std::vector<double> tokens_;
};

// Σ of the sites' own scores, nats a token.
double predicted(const Task& task, const std::vector<int>& choice) {
  long double sum = 0;
  for (size_t i = 0; i < choice.size(); ++i) {
    sum += task.asked.choices[i].choices[static_cast<size_t>(choice[i])].score.kl_nats_per_token;
  }
  return static_cast<double>(sum);
}

Json measured_json(const Task& task, const Measured& measured, const std::vector<double>& tokens) {
  const double sum = predicted(task, measured.choice);
  const Ratio kl = ratio(measured.sums, tokens);
  return {{"configuration", name_of(task, measured.choice)},
          {"round", measured.round},
          {"effective_bits", effective_bits_of(task.asked.problem, measured.choice)},
          {"predicted_kl_nats", sum},
          {"measured_kl_nats", kl.value},
          {"standard_error", optional_json(kl.standard_error)},
          {"ratio", sum > 0 ? Json(kl.value / sum) : Json()}};
}

// The same with its sites.
Json assignment_json(const Task& task, const Measured& measured,
                     const std::vector<double>& tokens) {
  Json json = measured_json(task, measured, tokens);
  json["sites"] = assignment_sites_json(task.search.spec, task.asked.choices, measured.choice);
  const auto& memory = task.asked.limits.memory;
  if (memory) {
    json["memory"] = memory_json(task.search.spec, candidates_of(task, measured.choice), *memory);
  }
  return json;
}

Json additivity_json(const Json& measured) {
  std::vector<double> sums;
  std::vector<double> wholes;
  for (const Json& one : measured) {
    sums.push_back(one.at("predicted_kl_nats"));
    wholes.push_back(one.at("measured_kl_nats"));
  }
  const Additivity found = additivity(sums, wholes);
  return {{"spearman", optional_json(found.spearman)},
          {"slope", optional_json(found.slope)},
          {"ratio_median", optional_json(found.ratio_median)}};
}

std::string end_text(Refinement::End end) {
  switch (end) {
    case Refinement::End::kNoneBetter:
      return "no neighbour was better";
    case Refinement::End::kNoneLeft:
      return "no neighbour was left to measure";
    case Refinement::End::kRounds:
      return "the rounds were used up";
  }
  return "";
}

Json answer_json(const RefineFlags& flags, const Task& task, const Refinement& found,
                 const std::vector<double>& tokens) {
  const Measured& start = found.measured.front();
  const Measured& best = found.measured[found.best];
  const Ratio improvement = difference_of(start, best, tokens);
  Json measured = Json::array();
  for (const Measured& one : found.measured) measured.push_back(measured_json(task, one, tokens));
  const Json additivity = additivity_json(measured);
  return {{"search", task.search.id},
          {"fingerprint", task.search.fingerprint.sha256},
          {"budget", task.assignment.at("budget")},
          {"held_out", flags.held_out},
          {"start", assignment_json(task, start, tokens)},
          {"refined", assignment_json(task, best, tokens)},
          {"improvement_kl_nats", improvement.value},
          {"improvement_standard_error", optional_json(improvement.standard_error)},
          {"rounds", found.rounds},
          {"measured", std::move(measured)},
          {"additivity", additivity},
          {"ended", end_text(found.end)},
          {"all_neighbours_measured", found.exhausted}};
}

std::string number_text(const Json& value) {
  return value.is_null() ? "-" : fmt::format("{:.3f}", value.get<double>());
}

std::string measured_table(const Json& measured) {
  using Align = Table::Align;
  Table table({{"round", Align::kRight},
               {"bits", Align::kRight},
               {"sum of sites", Align::kRight},
               {"measured", Align::kRight},
               {"± s.e.", Align::kRight},
               {"ratio", Align::kRight},
               {"assignment"}});
  for (const Json& one : measured) {
    table.add({one.at("round").dump(), bits_text(one.at("effective_bits")),
               nats_text(one.at("predicted_kl_nats")), nats_text(one.at("measured_kl_nats")),
               nats_text(one.at("standard_error")), number_text(one.at("ratio")),
               one.at("configuration")});
  }
  return table.text();
}

std::string answer_text(const Json& answer) {
  const Json& start = answer.at("start");
  const Json& refined = answer.at("refined");
  const Json& additivity = answer.at("additivity");
  const bool all = answer.at("all_neighbours_measured");
  std::string text = measured_table(answer.at("measured"));
  if (refined.at("configuration") == "start") {
    text += fmt::format("\n\nthe start stays: measured KL {} nats a token",
                        nats_text(start.at("measured_kl_nats")));
  } else {
    text += fmt::format(
        "\n\nrefined: {}\n{} effective bits, measured KL {} nats a token: {} ± {} (paired by "
        "sequence) below the start",
        refined.at("configuration").get<std::string>(), bits_text(refined.at("effective_bits")),
        nats_text(refined.at("measured_kl_nats")), nats_text(answer.at("improvement_kl_nats")),
        nats_text(answer.at("improvement_standard_error")));
  }
  const int rounds = answer.at("rounds");
  text += fmt::format("\n{} assignments measured in {} round{} on {}; {}; {}",
                      answer.at("measured").size(), rounds, rounds == 1 ? "" : "s",
                      answer.at("held_out") == true ? "other data than was searched with"
                                                    : "the tokens of the search",
                      answer.at("ended").get<std::string>(),
                      all ? "all neighbours were measured: no swap within the budget helps"
                          : "some neighbours were not measured");
  text += fmt::format(
      "\nadditivity: measured / sum of sites {} at the median, rank correlation {}, slope {}",
      number_text(additivity.at("ratio_median")), number_text(additivity.at("spearman")),
      number_text(additivity.at("slope")));
  return text;
}

Result<int> run_refine(const Context& context, const RefineFlags& flags,
                       const WorkerFlags& workers) {
  BA_ASSIGN_OR_RETURN(const Task task, make_task(context, flags));
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  Rounds rounds(task, *connection, workers);
  const Result<Refinement> found =
      refine(task.asked.problem, task.asked.constraints, task.start, flags.search,
             [&](const auto& choices, int round) { return rounds.measure(choices, round); });
  if (rounds.ending().kind != Ending::Kind::kDone) return report_ending(context, rounds.ending());
  if (!found.ok()) return found.error();
  const Json answer = answer_json(flags, task, *found, rounds.tokens());
  if (context.json) {
    print_json(answer);
  } else {
    print_line(context, answer_text(answer));
  }
  return kExitOk;
}

}  // namespace

void add_refine_command(CommandLine& line) {
  auto flags = std::make_shared<RefineFlags>();
  auto workers = std::make_shared<WorkerFlags>();
  const Context& context = line.context;
  CLI::App* command = add_command(
      line, line.app, "refine",
      "measures an assignment and its neighbours as wholes, and takes the best", kExamples);
  command->add_option("ID", flags->id, "the search")->required();
  add_validation_options(command, flags->data, "the data that was searched with");
  command->add_flag("--held-out", flags->held_out, "--data is other data; measure on that");
  command->add_option("--bits", flags->bits, "effective bits (default: those of the search)");
  add_limit_options(command, flags->limits);
  command->add_option("--pin", flags->pins, "SITE=CANDIDATE that must be kept (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--neighbours", flags->search.neighbours, "neighbours to measure a round")
      ->check(CLI::Range(1, 200))
      ->capture_default_str();
  command->add_option("--rounds", flags->search.rounds, "rounds at most")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_worker_options(command, *workers);
  on_run(line, command, [=, &context] { return run_refine(context, *flags, *workers); });
}

}  // namespace bitalloc::cli
