// What budgets give: rebudget, assignment, frontier. From a checkpoint when there is one: no
// service, no model, no worker.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <sstream>

#include "common/files.h"
#include "ops/cli/answers.h"
#include "ops/cli/output.h"
#include "ops/cli/search_inputs.h"

namespace bitalloc::cli {
namespace {

struct BudgetFlags {
  std::string id;
  std::vector<std::string> bits;
  std::vector<std::string> pins;
  std::string checkpoint;
  std::string csv;
  bool scores = false;
};

constexpr const char* kRebudgetExamples = R"(examples:
  bitalloc rebudget my-search --bits 5.0
  bitalloc rebudget my-search --bits 4.8 --bits 6 --pin layers.0=bf16 --json
  bitalloc rebudget --checkpoint run1/checkpoint.json --bits 5.0)";

constexpr const char* kAssignmentExamples = R"(examples:
  bitalloc assignment my-search
  bitalloc assignment my-search --bits 5 --scores --json)";

constexpr const char* kFrontierExamples = R"(examples:
  bitalloc frontier my-search
  bitalloc frontier my-search --csv frontier.csv)";

Result<Pins> parse_pins(const std::vector<std::string>& texts) {
  Pins pins;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      return invalid_argument(fmt::format("--pin: '{}' is not SITE=CANDIDATE", text), "--pin",
                              "e.g. --pin layers.0=bf16");
    }
    if (!pins.emplace(text.substr(0, equals), text.substr(equals + 1)).second) {
      return invalid_argument(fmt::format("--pin: '{}' is pinned twice", text.substr(0, equals)),
                              "--pin");
    }
  }
  return pins;
}

Status require_search(const BudgetFlags& flags) {
  if (!flags.id.empty() || !flags.checkpoint.empty()) return {};
  return invalid_argument("name a search, or give --checkpoint FILE", "ID");
}

Result<int> rebudget(const Context& context, const BudgetFlags& flags) {
  BA_RETURN_IF_ERROR(require_search(flags));
  BA_ASSIGN_OR_RETURN(const Pins pins, parse_pins(flags.pins));
  std::vector<double> budgets;
  for (const std::string& text : flags.bits) {
    BA_ASSIGN_OR_RETURN(const double value, parse_bits(text, "--bits"));
    budgets.push_back(value);
  }
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, flags.id, flags.checkpoint));
  Json list = Json::array();
  for (const double budget : budgets) {
    BA_ASSIGN_OR_RETURN(const Json one, answers.assignment(budget, pins, false));
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
  BA_ASSIGN_OR_RETURN(const Json found, answers.assignment(bits, {}, flags.scores));
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
  text << "effective_bits,objective_kl_nats";
  if (!frontier.empty()) {
    for (const auto& [site, ignored] : frontier[0].at("assignment").items()) text << "," << site;
  }
  text << "\n";
  for (const Json& point : frontier) {
    text << point.at("effective_bits").dump() << "," << point.at("objective_kl_nats").dump();
    for (const auto& [site, candidate] : point.at("assignment").items()) {
      text << "," << candidate.get<std::string>();
    }
    text << "\n";
  }
  return text.str();
}

std::string frontier_text(const Json& frontier) {
  using Align = Table::Align;
  Table table({{"bits", Align::kRight}, {"KL nats/token", Align::kRight}, {"sites by candidate"}});
  for (const Json& point : frontier) {
    std::map<std::string, int> counts;
    for (const auto& [site, candidate] : point.at("assignment").items()) {
      ++counts[candidate.get<std::string>()];
    }
    std::string mix;
    for (const auto& [candidate, count] : counts) {
      mix += fmt::format("{}{} × {}", mix.empty() ? "" : ", ", count, candidate);
    }
    table.add(
        {bits_text(point.at("effective_bits")), nats_text(point.at("objective_kl_nats")), mix});
  }
  return table.text();
}

Result<int> frontier(const Context& context, const BudgetFlags& flags) {
  BA_RETURN_IF_ERROR(require_search(flags));
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, flags.id, flags.checkpoint));
  BA_ASSIGN_OR_RETURN(const Json found, answers.frontier());
  if (!flags.csv.empty()) {
    BA_RETURN_IF_ERROR(write_file_atomically(flags.csv, frontier_csv(found)));
  }
  if (context.json) {
    print_json(found);
  } else {
    print_line(context, frontier_text(found));
  }
  return kExitOk;
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
      ->required()
      ->allow_extra_args(false);
  command->add_option("--pin", flags->pins, "SITE=CANDIDATE that must be kept (repeatable)")
      ->allow_extra_args(false);
  on_run(line, command, [flags, &context] { return rebudget(context, *flags); });

  command = add_budget_command(line, "assignment", "site by site: candidate, bits, score",
                               kAssignmentExamples, *flags);
  command->add_option("--bits", flags->bits, "effective bits (default: those of the search)")
      ->allow_extra_args(false);
  command->add_flag("--scores", flags->scores, "the scores of every candidate, too");
  on_run(line, command, [flags, &context] { return assignment(context, *flags); });

  command = add_budget_command(line, "frontier", "the best assignment of every budget",
                               kFrontierExamples, *flags);
  command->add_option("--csv", flags->csv, "write it as a table, too");
  on_run(line, command, [flags, &context] { return frontier(context, *flags); });
}

}  // namespace bitalloc::cli
