#include "solver/allocate.h"

#include <algorithm>
#include <cmath>

#include "solver/confidence_json.h"
#include "solver/frontier.h"
#include "solver/solve.h"
#include "solver/validation_rows.h"

namespace bitalloc {
namespace {

using Choices = std::vector<SiteChoices>;

// A search and what is asked of it.
struct Request {
  const SearchSpec& spec;
  const ScoreTable& table;
  const AllocateOptions& options;
  double effective_bits;  // 0: no such budget
  const Limits& limits;
  const Constraints* constraints;
};

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

const Choice& chosen(const SiteChoices& site, int index) {
  return site.choices[static_cast<size_t>(index)];
}

double objective_per_token(const Choices& choices, const std::vector<int>& picked) {
  long double sum = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    sum += chosen(choices[i], picked[i]).score.kl_nats_per_token;
  }
  return static_cast<double>(sum);
}

Json scores_json(const Request& request, size_t site) {
  Json scores = Json::object();
  for (size_t column = 0; column < request.spec.candidates.size(); ++column) {
    const Score score = request.table.score(static_cast<int64_t>(site),
                                            CandidateIndex(static_cast<int64_t>(column)));
    scores[candidate_name(request.spec.candidates[column])] = score_json(score);
  }
  return scores;
}

Json sites_json(const Request& request, const Choices& choices, const std::vector<int>& picked) {
  Json sites = assignment_sites_json(request.spec, choices, picked);
  if (!request.options.with_scores) return sites;
  for (size_t i = 0; i < choices.size(); ++i) {
    sites[i]["scores"] = scores_json(request, choices[i].site);
  }
  return sites;
}

// What the smoothed scores of `problem` say of the assignment, per token.
void add_smoothed(const Problem& problem, const std::vector<int>& picked, double tokens,
                  Json* answer) {
  for (size_t i = 0; i < picked.size(); ++i) {
    (*answer)["sites"][i]["smoothed_kl_nats_per_token"] = problem.score[i][picked[i]] / tokens;
  }
  (*answer)["smoothed_objective_kl_nats"] = objective_of(problem, picked) / tokens;
}

// How sure the assignment is, from the sums of every sequence of a complete table.
Status add_errors(const Request& request, const Choices& choices, const Samples& samples,
                  const Problem& problem, const std::vector<int>& picked, Json* answer) {
  (*answer)["objective_standard_error"] =
      optional_json(objective_of(samples, picked).standard_error);
  if (request.options.smooth) {
    const double tokens = std::accumulate(samples.tokens.begin(), samples.tokens.end(), 0.0);
    add_smoothed(problem, picked, tokens, answer);
  }
  if (!request.options.confidence) return {};
  ConfidenceOptions options = *request.options.confidence;
  options.smooth = request.options.smooth;
  BA_ASSIGN_OR_RETURN((*answer)["confidence"],
                      confidence_json({request.spec, choices, problem, samples,
                                       *request.constraints, picked, options}));
  return {};
}

// What is asked, and where nothing is, what was asked at submission.
Result<AllocationProblem> budget_of(const SearchSpec& spec, double effective_bits,
                                    const AllocateOptions& options) {
  AllocationProblem asked{effective_bits, options.limits};
  if (effective_bits != 0 || options.limits.memory) return asked;
  asked.effective_bits = spec.effective_bits;
  asked.limits.memory = spec.memory;
  if (asked.effective_bits != 0 || asked.limits.memory) return asked;
  return invalid_argument("the search was submitted without a budget", "effective_bits",
                          "name one: --bits B, or --memory with --context");
}

// Sites that are pinned to bf16 or have it deployed may take it, scored or not.
Pins may_be_reference(const AllocateOptions& options) {
  Pins named = options.pins;
  if (options.limits.deployed) {
    for (const auto& [site, candidate] : options.limits.deployed->candidates) {
      named.emplace(site, candidate);
    }
  }
  return named;
}

// What conflicts, by the names that people gave it.
Error explained(Error error, const Request& request) {
  if (error.code != ErrorCode::kInfeasible || error.field == "budget") return error;
  std::string names = error.field;
  if (names.starts_with("budget")) {
    names.replace(0, 6, fmt::format("{} effective bits", request.effective_bits));
  }
  error.message = fmt::format("no assignment meets all of this together: {}", names);
  return error;
}

Json answer_json(const std::string& id, const Fingerprint& fingerprint, const Request& request,
                 const Choices& choices, const Solution& solution) {
  const double bits = request.effective_bits;
  Json answer = {{"search", id},
                 {"fingerprint", fingerprint.sha256},
                 {"budget", {{"effective_bits", bits == 0 ? Json() : Json(bits)}}},
                 {"effective_bits", solution.effective_bits},
                 {"objective_kl_nats", objective_per_token(choices, solution.choice)},
                 {"objective_standard_error", nullptr},
                 {"proven_optimal", solution.proven_optimal},
                 {"gap", solution.gap},
                 {"solve_ms", solution.solve_ms},
                 {"sites", sites_json(request, choices, solution.choice)}};
  if (!request.limits.memory) return answer;
  std::vector<Candidate> picked;
  for (size_t i = 0; i < choices.size(); ++i) {
    picked.push_back(chosen(choices[i], solution.choice[i]).candidate);
  }
  answer["memory"] = memory_json(request.spec, picked, *request.limits.memory);
  return answer;
}

Json point_json(const SearchSpec& spec, const Choices& choices, const FrontierPoint& point) {
  Json assignment = Json::object();
  for (size_t i = 0; i < choices.size(); ++i) {
    assignment[spec.sites[choices[i].site].name] =
        candidate_name(chosen(choices[i], point.choice[i]).candidate);
  }
  return {{"effective_bits", point.effective_bits},
          {"objective_kl_nats", objective_per_token(choices, point.choice)},
          {"objective_standard_error", nullptr},
          {"knee", false},
          {"assignment", std::move(assignment)}};
}

Json points_json(const SearchSpec& spec, const Choices& choices, const Frontier& frontier) {
  Json points = Json::array();
  for (const FrontierPoint& point : frontier.points) {
    points.push_back(point_json(spec, choices, point));
    if (!frontier.exact) points.back()["extreme_only"] = true;
  }
  for (const size_t knee : knees(frontier)) points[knee]["knee"] = true;
  return points;
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

Result<AllocateOptions> allocate_options(const Json& json, const std::string& where) {
  AllocateOptions options;
  BA_ASSIGN_OR_RETURN(options.pins, json_field_or<Pins>(json, "pins", where, {}));
  BA_ASSIGN_OR_RETURN(const Json limits,
                      json_field_or<Json>(json, "limits", where, Json::object()));
  BA_ASSIGN_OR_RETURN(options.limits, limits_from_json(limits, where + ".limits"));
  BA_ASSIGN_OR_RETURN(options.with_scores, json_field_or<bool>(json, "scores", where, false));
  BA_ASSIGN_OR_RETURN(options.partial, json_field_or<bool>(json, "partial", where, false));
  BA_ASSIGN_OR_RETURN(options.smooth, json_field_or<bool>(json, "smooth", where, false));
  BA_ASSIGN_OR_RETURN(options.confidence, confidence_options(json, where));
  return options;
}

Json to_json(const AllocateOptions& options) {
  Json json = {{"pins", options.pins},
               {"scores", options.with_scores},
               {"partial", options.partial},
               {"smooth", options.smooth}};
  if (!options.limits.empty()) json["limits"] = to_json(options.limits);
  if (options.confidence) json["confidence"] = to_json(*options.confidence);
  return json;
}

Result<AllocationProblem> allocation_problem(const SearchSpec& spec, const ScoreTable& table,
                                             double effective_bits,
                                             const AllocateOptions& options) {
  BA_ASSIGN_OR_RETURN(AllocationProblem asked, budget_of(spec, effective_bits, options));
  BA_ASSIGN_OR_RETURN(asked.choices, make_choices(spec, table, may_be_reference(options), false));
  BA_ASSIGN_OR_RETURN(asked.constraints, make_constraints(spec, asked.choices, asked.effective_bits,
                                                          options.pins, asked.limits));
  asked.problem = make_problem(spec, asked.choices, table.complete());
  return asked;
}

Json assignment_sites_json(const SearchSpec& spec, const std::vector<SiteChoices>& choices,
                           const std::vector<int>& picked) {
  Json sites = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Site& site = spec.sites[choices[i].site];
    const Choice& choice = chosen(choices[i], picked[i]);
    sites.push_back({{"site", site.name},
                     {"candidate", candidate_name(choice.candidate)},
                     {"bits", candidate_bits(site, choice.candidate)},
                     {"kl_nats_per_token", choice.score.kl_nats_per_token},
                     {"standard_error", optional_json(choice.score.standard_error)}});
  }
  return sites;
}

Result<Json> allocate(const std::string& id, const SearchSpec& spec, const Fingerprint& fingerprint,
                      const ScoreTable& table, double effective_bits,
                      const AllocateOptions& options, Reprover* reprover) {
  const bool needs_all = options.smooth || options.confidence.has_value();
  BA_RETURN_IF_ERROR(check_complete(id, spec, table, options.partial && !needs_all));
  BA_ASSIGN_OR_RETURN(AllocationProblem asked,
                      allocation_problem(spec, table, effective_bits, options));
  const auto& [budget, limits, choices, scored, constraints] = asked;
  const Request request{spec, table, options, budget, limits, &constraints};
  Problem problem = scored;
  Samples samples;
  if (table.complete()) samples = make_samples(table, choices);
  if (options.smooth) problem = smoothed(std::move(problem), fit_weights(samples));
  const Result<Solution> solved = solve(problem, constraints);
  if (!solved.ok()) return explained(solved.error(), request);
  const Solution& solution = *solved;
  if (reprover != nullptr) reprover->submit(problem, constraints, solution);
  Json answer = answer_json(id, fingerprint, request, choices, solution);
  if (!table.complete()) {
    answer["partial"] = true;
    return answer;
  }
  BA_RETURN_IF_ERROR(add_errors(request, choices, samples, problem, solution.choice, &answer));
  return answer;
}

Result<Json> frontier_json(const std::string& id, const SearchSpec& spec, const ScoreTable& table,
                           bool partial) {
  BA_RETURN_IF_ERROR(check_complete(id, spec, table, partial));
  const bool complete = table.complete();
  BA_ASSIGN_OR_RETURN(const Choices choices, make_choices(spec, table, {}, !complete));
  BA_ASSIGN_OR_RETURN(const Frontier frontier,
                      solve_frontier(make_problem(spec, choices, complete)));
  Json points = points_json(spec, choices, frontier);
  Samples samples;
  if (complete) samples = make_samples(table, choices);
  for (size_t k = 0; k < points.size(); ++k) {
    if (complete) {
      const Ratio objective = objective_of(samples, frontier.points[k].choice);
      points[k]["objective_standard_error"] = optional_json(objective.standard_error);
    } else {
      points[k]["scored_share"] =
          static_cast<double>(choices.size()) / static_cast<double>(spec.sites.size());
    }
  }
  Json answer = {{"frontier", std::move(points)},
                 {"exact", frontier.exact},
                 {"sites", spec.sites.size()},
                 {"scored_sites", choices.size()}};
  if (!complete) answer["partial"] = true;
  return answer;
}

}  // namespace bitalloc
