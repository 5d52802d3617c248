#include "solver/allocate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "solver/frontier.h"
#include "solver/solve.h"

namespace bitalloc {
namespace {

// What a site may take, with the score of each.
struct Choice {
  Candidate candidate;
  Score score;
  bool scored = true;  // false: the reference, which costs nothing by definition
};
using Choices = std::vector<std::vector<Choice>>;  // [site]

// "layers.0" fits "model.layers.0.self_attn", but not "model.layers.01.self_attn".
bool fits(const std::string& site, const std::string& pin) {
  return !pin.empty() && ("." + site + ".").find("." + pin + ".") != std::string::npos;
}

Result<size_t> find_site(const SearchSpec& spec, const std::string& pin) {
  std::optional<size_t> found;
  for (size_t i = 0; i < spec.sites.size(); ++i) {
    if (spec.sites[i].name == pin) return i;
    if (!fits(spec.sites[i].name, pin)) continue;
    if (found) {
      return invalid_argument(fmt::format("pin '{}' fits several sites, e.g. {} and {}", pin,
                                          spec.sites[*found].name, spec.sites[i].name),
                              "pins", "name one site");
    }
    found = i;
  }
  if (found) return *found;
  return invalid_argument(fmt::format("pin '{}' fits no site of the search", pin), "pins",
                          fmt::format("sites are named like {}", spec.sites.front().name));
}

Result<Choice> pinned_choice(const std::vector<Choice>& choices, const std::string& name) {
  BA_ASSIGN_OR_RETURN(const Candidate wanted, parse_candidate(name));
  std::string known;
  for (const Choice& choice : choices) {
    if (choice.candidate == wanted) return choice;
    known += candidate_name(choice.candidate) + ", ";
  }
  if (wanted == Candidate{}) return Choice{wanted, Score{0, 0, 0, 0.0}, false};
  return invalid_argument(fmt::format("'{}' was not scored in this search", name), "pins",
                          fmt::format("pin one of {}bf16", known));
}

Status check_complete(const std::string& id, const SearchSpec& spec, const ScoreTable& table,
                      bool partial) {
  if (spec.kind != JobKind::kSearch) {
    return invalid_argument(fmt::format("'{}' is a validation: it has no assignment", id), "id");
  }
  if (table.complete() || partial) return {};
  const double percent =
      100.0 * static_cast<double>(table.units_done()) / static_cast<double>(table.units_total());
  return unavailable(
      fmt::format("search '{}' is {:.0f} % done; it has no assignment yet", id, percent), "id",
      "wait for it: `bitalloc watch " + id + "`");
}

Result<Choices> make_choices(const SearchSpec& spec, const ScoreTable& table, const Pins& pins) {
  Choices choices(spec.sites.size());
  for (size_t site = 0; site < choices.size(); ++site) {
    for (size_t column = 0; column < spec.candidates.size(); ++column) {
      const Score score =
          table.score(static_cast<int64_t>(site), CandidateIndex(static_cast<int64_t>(column)));
      if (score.tokens == 0) {
        return unavailable(fmt::format("site {} has no score yet", spec.sites[site].name), "id");
      }
      choices[site].push_back({spec.candidates[column], score});
    }
  }
  for (const auto& [pin, name] : pins) {
    BA_ASSIGN_OR_RETURN(const size_t site, find_site(spec, pin));
    BA_ASSIGN_OR_RETURN(Choice choice, pinned_choice(choices[site], name));
    choices[site] = {std::move(choice)};
  }
  return choices;
}

// Sums over tokens are what was measured, so they are what is minimized; an unfinished search has
// seen another number of tokens at every site, so there it is the means.
Problem make_problem(const SearchSpec& spec, const Choices& choices, bool complete) {
  Problem problem;
  for (size_t site = 0; site < choices.size(); ++site) {
    problem.width.push_back(
        static_cast<double>(spec.sites[site].k_width + spec.sites[site].v_width));
    auto& bits = problem.bits.emplace_back();
    auto& score = problem.score.emplace_back();
    for (const Choice& choice : choices[site]) {
      bits.push_back(candidate_bits(spec.sites[site], choice.candidate));
      score.push_back(complete ? choice.score.kl_sum_nats : choice.score.kl_nats_per_token);
    }
  }
  return problem;
}

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json site_json(const Site& site, const Choice& choice) {
  return {{"site", site.name},
          {"candidate", candidate_name(choice.candidate)},
          {"bits", candidate_bits(site, choice.candidate)},
          {"kl_nats_per_token", choice.score.kl_nats_per_token},
          {"standard_error", optional_json(choice.score.standard_error)}};
}

double objective_per_token(const Choices& choices, const std::vector<int>& chosen) {
  long double sum = 0;
  for (size_t site = 0; site < choices.size(); ++site) {
    sum += choices[site][static_cast<size_t>(chosen[site])].score.kl_nats_per_token;
  }
  return static_cast<double>(sum);
}

double bits_of(const SearchSpec& spec, const Configuration& configuration) {
  double bits = 0;
  double width = 0;
  for (size_t site = 0; site < spec.sites.size(); ++site) {
    const double elements =
        static_cast<double>(spec.sites[site].k_width + spec.sites[site].v_width);
    bits += elements * candidate_bits(spec.sites[site], configuration.candidates[site]);
    width += elements;
  }
  return bits / width;
}

// Σ over sequences of numerator and denominator; their ratio with its standard error (as Score's).
struct Ratio {
  double value = 0;
  std::optional<double> standard_error;
};

Ratio ratio(const std::vector<double>& numerator, const std::vector<double>& denominator) {
  const double total = std::accumulate(denominator.begin(), denominator.end(), 0.0);
  Ratio result;
  if (total <= 0) return result;
  result.value = std::accumulate(numerator.begin(), numerator.end(), 0.0) / total;
  if (numerator.size() < 2) return result;
  double squares = 0;
  for (size_t i = 0; i < numerator.size(); ++i) {
    const double residual = numerator[i] - result.value * denominator[i];
    squares += residual * residual;
  }
  const double n = static_cast<double>(numerator.size());
  result.standard_error = std::sqrt(n / (n - 1) * squares) / total;
  return result;
}

// One number a sequence, of one configuration.
std::vector<double> per_sequence(const ScoreTable& table, int64_t row, Metric metric) {
  std::vector<double> values;
  for (const UnitId& unit : table.units()) {
    if (unit.kind != UnitKind::kScore || row < unit.row_begin || row >= unit.row_end) continue;
    const UnitResult& result = table.result(unit);
    const int64_t sequences = std::ssize(result.tokens);
    const int64_t base =
        ((row - unit.row_begin) * kValidationMetrics + static_cast<int64_t>(metric)) * sequences;
    values.insert(values.end(), result.sums.begin() + base, result.sums.begin() + base + sequences);
  }
  return values;
}

Json configuration_json(const SearchSpec& spec, const ScoreTable& table, size_t row) {
  const int64_t index = static_cast<int64_t>(row);
  Json metrics = Json::array();
  for (const Metric metric :
       {Metric::kKl, Metric::kNll, Metric::kTop1Agreements, Metric::kNextTokens}) {
    metrics.push_back(score_json(table.score(index, CandidateIndex(0), metric)));
  }
  const Score kl = table.score(index, CandidateIndex(0));
  const Score agreement = table.score(index, CandidateIndex(0), Metric::kTop1Agreements);
  const Ratio nll = ratio(per_sequence(table, index, Metric::kNll),
                          per_sequence(table, index, Metric::kNextTokens));
  const double perplexity = std::exp(nll.value);
  std::optional<double> perplexity_error;  // of exp(x): the error of x times the derivative
  if (nll.standard_error) perplexity_error = *nll.standard_error * perplexity;
  return {{"row", index},
          {"configuration", spec.configurations[row].name},
          {"effective_bits", bits_of(spec, spec.configurations[row])},
          {"kl_nats_per_token", kl.kl_nats_per_token},
          {"perplexity", perplexity},
          {"top1_agreement", agreement.kl_nats_per_token},
          {"standard_error",
           {{"kl_nats_per_token", optional_json(kl.standard_error)},
            {"perplexity", optional_json(perplexity_error)},
            {"top1_agreement", optional_json(agreement.standard_error)}}},
          {"metrics", std::move(metrics)}};
}

}  // namespace

BitsRange reachable_bits(const SearchSpec& spec) {
  BitsRange range;
  double width = 0;
  for (const Site& site : spec.sites) {
    double low = INFINITY;
    double high = 0;
    for (const Candidate& candidate : spec.candidates) {
      low = std::min(low, candidate_bits(site, candidate));
      high = std::max(high, candidate_bits(site, candidate));
    }
    const double elements = static_cast<double>(site.k_width + site.v_width);
    range.lowest += elements * low;
    range.highest += elements * high;
    width += elements;
  }
  range.lowest /= width;
  range.highest /= width;
  return range;
}

Json score_json(const Score& score) {
  return {{"kl_sum_nats", score.kl_sum_nats},
          {"tokens", score.tokens},
          {"kl_nats_per_token", score.kl_nats_per_token},
          {"standard_error", optional_json(score.standard_error)}};
}

Result<Json> allocate(const std::string& id, const SearchSpec& spec, const Fingerprint& fingerprint,
                      const ScoreTable& table, double effective_bits, const Pins& pins,
                      bool with_scores, bool partial, Reprover* reprover) {
  BA_RETURN_IF_ERROR(check_complete(id, spec, table, partial));
  BA_ASSIGN_OR_RETURN(const Choices choices, make_choices(spec, table, pins));
  Problem problem = make_problem(spec, choices, table.complete());
  BA_ASSIGN_OR_RETURN(const Solution solution, solve(problem, effective_bits));
  if (reprover != nullptr) {
    Constraints budget;
    budget.effective_bits = effective_bits;
    reprover->submit(std::move(problem), std::move(budget), solution);
  }
  Json sites = Json::array();
  for (size_t site = 0; site < choices.size(); ++site) {
    Json row =
        site_json(spec.sites[site], choices[site][static_cast<size_t>(solution.choice[site])]);
    if (with_scores) {
      row["scores"] = Json::object();
      for (size_t column = 0; column < spec.candidates.size(); ++column) {
        const Score score =
            table.score(static_cast<int64_t>(site), CandidateIndex(static_cast<int64_t>(column)));
        row["scores"][candidate_name(spec.candidates[column])] = score_json(score);
      }
    }
    sites.push_back(std::move(row));
  }
  Json answer = {{"search", id},
                 {"fingerprint", fingerprint.sha256},
                 {"budget", {{"effective_bits", effective_bits}}},
                 {"effective_bits", solution.effective_bits},
                 {"objective_kl_nats", objective_per_token(choices, solution.choice)},
                 {"proven_optimal", solution.proven_optimal},
                 {"gap", solution.gap},
                 {"solve_ms", solution.solve_ms},
                 {"sites", std::move(sites)}};
  if (!table.complete()) answer["partial"] = true;
  return answer;
}

Result<Json> frontier_json(const std::string& id, const SearchSpec& spec, const ScoreTable& table,
                           const Pins& pins) {
  BA_RETURN_IF_ERROR(check_complete(id, spec, table, false));
  BA_ASSIGN_OR_RETURN(const Choices choices, make_choices(spec, table, pins));
  BA_ASSIGN_OR_RETURN(const Frontier frontier, solve_frontier(make_problem(spec, choices, true)));
  Json points = Json::array();
  for (const FrontierPoint& point : frontier.points) {
    Json assignment = Json::object();
    for (size_t site = 0; site < choices.size(); ++site) {
      const Choice& choice = choices[site][static_cast<size_t>(point.choice[site])];
      assignment[spec.sites[site].name] = candidate_name(choice.candidate);
    }
    points.push_back({{"effective_bits", point.effective_bits},
                      {"objective_kl_nats", objective_per_token(choices, point.choice)},
                      {"assignment", std::move(assignment)}});
  }
  return points;
}

Result<Json> validation_json(const std::string& id, const SearchSpec& spec,
                             const ScoreTable& table) {
  if (spec.kind != JobKind::kValidation) {
    return invalid_argument(fmt::format("'{}' is a search, not a validation", id), "id",
                            "`bitalloc assignment` shows its scores");
  }
  if (!table.complete()) {
    return unavailable(fmt::format("validation '{}' is not finished", id), "id");
  }
  Json rows = Json::array();
  for (size_t row = 0; row < spec.configurations.size(); ++row) {
    rows.push_back(configuration_json(spec, table, row));
  }
  return rows;
}

}  // namespace bitalloc
