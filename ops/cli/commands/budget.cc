// What budgets give: rebudget, assignment, frontier. From a checkpoint when there is one: no
// service, no model, no worker.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <sstream>

#include "common/files.h"
#include "ops/cli/answers.h"
#include "ops/cli/frontier_plot.h"
#include "ops/cli/limit_flags.h"
#include "ops/cli/output.h"
#include "ops/cli/search_inputs.h"

namespace bitalloc::cli {
namespace {

struct BudgetFlags {
  std::string id;
  std::vector<std::string> bits;
  std::vector<std::string> pins;
  LimitFlags limits;
  std::string checkpoint;
  std::string csv;
  std::string plot;
  bool scores = false;
  bool partial = false;
  bool smooth = false;
  bool confidence = false;
  ConfidenceOptions resampling;
};

constexpr const char* kRebudgetExamples = R"(examples:
  bitalloc rebudget my-search --bits 5.0
  bitalloc rebudget my-search --memory 8GiB --context 32768 --sequences 16
  bitalloc rebudget my-search --bits 4.8 --bits 6 --pin layers.0=bf16 --json
  bitalloc rebudget my-search --bits 5 --deployed now.json --max-changes 4 --max-formats 2
  bitalloc rebudget --checkpoint run1/checkpoint.json --bits 5.0
  bitalloc rebudget my-search --bits 5.0 --confidence      # which layers the data does not decide)";

constexpr const char* kAssignmentExamples = R"(examples:
  bitalloc assignment my-search
  bitalloc assignment my-search --bits 5 --scores --json
  bitalloc assignment my-search --confidence --resamples 1000)";

constexpr const char* kFrontierExamples = R"(examples:
  bitalloc frontier my-search
  bitalloc frontier my-search --plot frontier.svg --csv frontier.csv
  bitalloc frontier my-search --partial     # while its scores still arrive)";

// Errors: kInvalidArgument naming the flag.
Result<AllocateOptions> allocate_options(const BudgetFlags& flags) {
  AllocateOptions options;
  BA_ASSIGN_OR_RETURN(options.pins, parse_pins(flags.pins));
  BA_ASSIGN_OR_RETURN(options.limits, read_limits(flags.limits));
  options.with_scores = flags.scores;
  options.smooth = flags.smooth;
  if (flags.confidence) options.confidence = flags.resampling;
  return options;
}

Status require_search(const BudgetFlags& flags) {
  if (!flags.id.empty() || !flags.checkpoint.empty()) return {};
  return invalid_argument("name a search, or give --checkpoint FILE", "ID");
}

Result<int> rebudget(const Context& context, const BudgetFlags& flags) {
  BA_RETURN_IF_ERROR(require_search(flags));
  BA_ASSIGN_OR_RETURN(const AllocateOptions options, allocate_options(flags));
  std::vector<double> budgets;
  for (const std::string& text : flags.bits) {
    BA_ASSIGN_OR_RETURN(const double value, parse_bits(text, "--bits"));
    budgets.push_back(value);
  }
  if (budgets.empty()) {
    if (!options.limits.memory) {
      return invalid_argument("name a budget", "--bits", "--bits B, or --memory SIZE --context N");
    }
    budgets.push_back(0);  // of memory alone
  }
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, flags.id, flags.checkpoint));
  Json list = Json::array();
  for (const double budget : budgets) {
    BA_ASSIGN_OR_RETURN(const Json one, answers.assignment(budget, options));
    list.push_back(one);
  }
  if (context.json) {
    print_json(list.size() == 1 ? list[0] : list);
    return kExitOk;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    print_line(context, (i > 0 ? "\n" : "") + assignment_text(list[i]));
  }
  return kExitOk;
}

std::string scores_text(const Json& assignment) {
  using Align = Table::Align;
  Table table({{"site"},
               {"candidate"},
               {"KL nats/token", Align::kRight},
               {"± s.e.", Align::kRight},
               {"tokens", Align::kRight}});
  for (const Json& site : assignment.at("sites")) {
    for (const auto& [candidate, score] : site.at("scores").items()) {
      table.add({site.at("site"), candidate, nats_text(score.at("kl_nats_per_token")),
                 nats_text(score.at("standard_error")), score.at("tokens").dump()});
    }
  }
  return table.text();
}

Result<int> assignment(const Context& context, const BudgetFlags& flags) {
  BA_RETURN_IF_ERROR(require_search(flags));
  std::optional<double> bits;
  if (!flags.bits.empty()) {
    BA_ASSIGN_OR_RETURN(bits, parse_bits(flags.bits.back(), "--bits"));
  }
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, flags.id, flags.checkpoint));
  BA_ASSIGN_OR_RETURN(const AllocateOptions options, allocate_options(flags));
  BA_ASSIGN_OR_RETURN(const Json found, answers.assignment(bits, options));
  if (context.json) {
    print_json(found);
    return kExitOk;
  }
  if (flags.scores) print_line(context, scores_text(found) + "\n");
  print_line(context, assignment_text(found));
  return kExitOk;
}

std::string frontier_csv(const Json& frontier) {
  std::ostringstream text;
  text << "effective_bits,objective_kl_nats,objective_standard_error,knee";
  if (!frontier.empty()) {
    for (const auto& [site, ignored] : frontier[0].at("assignment").items()) text << "," << site;
  }
  text << "\n";
  for (const Json& point : frontier) {
    const Json& error = point.at("objective_standard_error");
    text << point.at("effective_bits").dump() << "," << point.at("objective_kl_nats").dump() << ","
         << (error.is_null() ? "" : error.dump()) << "," << point.at("knee").dump();
    for (const auto& [site, candidate] : point.at("assignment").items()) {
      text << "," << candidate.get<std::string>();
    }
    text << "\n";
  }
  return text.str();
}

// "fp8_e4m3/nvfp4 × 3, …": how many sites take what.
std::string mix_text(const Json& assignment) {
  std::map<std::string, int> counts;
  for (const auto& [site, candidate] : assignment.items()) ++counts[candidate.get<std::string>()];
  std::string mix;
  for (const auto& [candidate, count] : counts) {
    mix += fmt::format("{}{} × {}", mix.empty() ? "" : ", ", count, candidate);
  }
  return mix;
}

std::string frontier_text(const Json& answer) {
  using Align = Table::Align;
  Table table({{"bits", Align::kRight},
               {"KL nats/token", Align::kRight},
               {"± s.e.", Align::kRight},
               {""},
               {"sites by candidate"}});
  for (const Json& point : answer.at("frontier")) {
    table.add({bits_text(point.at("effective_bits")), nats_text(point.at("objective_kl_nats")),
               nats_text(point.at("objective_standard_error")),
               point.at("knee") == true ? "knee" : "", mix_text(point.at("assignment"))});
  }
  std::string text = table.text();
  if (!answer.value("exact", true)) {
    text += "\n\nonly the extreme points: there are too many efficient assignments to list";
  }
  if (answer.value("partial", false)) {
    text +=
        fmt::format("\n\nunder way: {} of {} sites have scores, the others are left out",
                    answer.at("scored_sites").get<int64_t>(), answer.at("sites").get<int64_t>());
  }
  return text;
}

Result<int> frontier(const Context& context, const BudgetFlags& flags) {
  BA_RETURN_IF_ERROR(require_search(flags));
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, flags.id, flags.checkpoint));
  BA_ASSIGN_OR_RETURN(const Json answer, answers.frontier(flags.partial));
  const Json& points = answer.at("frontier");
  if (!flags.csv.empty()) {
    BA_RETURN_IF_ERROR(write_file_atomically(flags.csv, frontier_csv(points)));
  }
  if (!flags.plot.empty()) {
    const std::string title = fmt::format("{}: the best assignment of every budget", answers.id());
    BA_RETURN_IF_ERROR(write_file_atomically(flags.plot, frontier_svg(answer, title)));
  }
  if (context.json) {
    print_json(points);
  } else {
    print_line(context, frontier_text(answer));
  }
  return kExitOk;
}

void add_confidence_options(CLI::App* command, BudgetFlags& flags) {
  command->add_flag("--smooth", flags.smooth,
                    "choose on scores smoothed so that more bits never score worse");
  CLI::Option* confidence = command->add_flag(
      "--confidence", flags.confidence, "resample the sequences: which sites keep their candidate");
  command->add_option("--resamples", flags.resampling.resamples, "how often")
      ->needs(confidence)
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  command->add_option("--seed", flags.resampling.seed, "of the resamples")
      ->check(CLI::NonNegativeNumber)
      ->needs(confidence)
      ->capture_default_str();
  command
      ->add_option("--threshold", flags.resampling.threshold,
                   "a site is undecided when fewer resamples keep its candidate")
      ->needs(confidence)
      ->check(CLI::Range(0.5, 1.0))
      ->capture_default_str();
}

CLI::App* add_budget_command(CommandLine& line, const std::string& name,
                             const std::string& description, const std::string& examples,
                             BudgetFlags& flags) {
  CLI::App* command = add_command(line, line.app, name, description, examples);
  command->add_option("ID", flags.id, "the search");
  command->add_option("--checkpoint", flags.checkpoint, "answer from this file instead");
  return command;
}

}  // namespace

void add_budget_commands(CommandLine& line) {
  auto flags = std::make_shared<BudgetFlags>();  // shared by the handlers: one of them runs
  const Context& context = line.context;
  CLI::App* command = add_budget_command(line, "rebudget", "the best assignment of other budgets",
                                         kRebudgetExamples, *flags);
  command->add_option("--bits", flags->bits, "effective bits an element (repeatable)")
      ->allow_extra_args(false);
  add_limit_options(command, flags->limits);
  command->add_option("--pin", flags->pins, "SITE=CANDIDATE that must be kept (repeatable)")
      ->allow_extra_args(false);
  add_confidence_options(command, *flags);
  on_run(line, command, [flags, &context] { return rebudget(context, *flags); });

  command = add_budget_command(line, "assignment", "site by site: candidate, bits, score",
                               kAssignmentExamples, *flags);
  command->add_option("--bits", flags->bits, "effective bits (default: those of the search)")
      ->allow_extra_args(false);
  add_limit_options(command, flags->limits);
  command->add_flag("--scores", flags->scores, "the scores of every candidate, too");
  add_confidence_options(command, *flags);
  on_run(line, command, [flags, &context] { return assignment(context, *flags); });

  command = add_budget_command(line, "frontier", "the best assignment of every budget",
                               kFrontierExamples, *flags);
  command->add_option("--csv", flags->csv, "write it as a table, too");
  command->add_option("--plot", flags->plot, "draw it as SVG, too");
  command->add_flag("--partial", flags->partial, "while scores still arrive: of what is there");
  on_run(line, command, [flags, &context] { return frontier(context, *flags); });
}

}  // namespace bitalloc::cli
