// From the scores of a search to an assignment: the solver's problem out of a score table, and its
// answer as the JSON of the manual. Needs no service: the command line calls it on checkpoint
// files, the coordinator on what it holds.
//
// Thread-safe.
#pragma once

#include <optional>
#include <string>

#include "common/fingerprint.h"
#include "common/json.h"
#include "common/score_table.h"
#include "common/search_spec.h"
#include "solver/choices.h"
#include "solver/confidence.h"
#include "solver/limits.h"
#include "solver/reprover.h"

namespace bitalloc {

// What budgets make sense for the sites of `spec` (its candidates, pins aside).
struct BitsRange {
  double lowest = 0;   // every site at its cheapest candidate
  double highest = 0;  // every site at its dearest one
};
BitsRange reachable_bits(const SearchSpec& spec);

struct AllocateOptions {
  Pins pins{};
  Limits limits{};
  bool with_scores = false;
  bool partial = false;  // answer from what is there, once every site has a score
  bool smooth = false;   // choose on scores that never grow with the bits (monotone.h)
  std::optional<ConfidenceOptions> confidence{};
};

// The same as fields of a message: {"pins", "limits" (limits.h), "scores", "partial", "smooth",
// "confidence": true or {"resamples", "seed", "threshold"}}, all optional. `where` names the object
// in errors.
Result<AllocateOptions> allocate_options(const Json& json, const std::string& where);
Json to_json(const AllocateOptions& options);

// What allocate() solves, for those who go on from its answer.
struct AllocationProblem {
  double effective_bits = 0;  // the budget; 0: none
  Limits limits = {};
  std::vector<SiteChoices> choices = {};
  Problem problem = {};  // scores as measured
  Constraints constraints = {};
};
// Of the same arguments, with the same errors but kInfeasible.
Result<AllocationProblem> allocation_problem(const SearchSpec& spec, const ScoreTable& table,
                                             double effective_bits, const AllocateOptions& options);

// "sites" as below, of picked: [site] index of its choice.
Json assignment_sites_json(const SearchSpec& spec, const std::vector<SiteChoices>& choices,
                           const std::vector<int>& picked);

// The best assignment within `effective_bits` (0: no such budget) and the limits of `options`; with
// neither bits nor memory, within the budget of the spec:
// {"search", "fingerprint", "budget": {"effective_bits" (null: none)}, "effective_bits",
//  "objective_kl_nats",
//  "objective_standard_error" (with the covariance of the sites; null for one sequence and while
//  partial), "proven_optimal", "gap", "sites": [{"site", "candidate", "bits", "kl_nats_per_token",
//  "standard_error" (null for one sequence)}…]}; objective_kl_nats = Σ kl_nats_per_token.
// - With a budget of memory there is "memory", see memory_json() in limits.h.
// - With scores a site also has "scores": {candidate: {"kl_sum_nats", "tokens",
//   "kl_nats_per_token", "standard_error"}}.
// - With `smooth` there is "smoothed_objective_kl_nats", which is what was minimized, and
//   "smoothed_kl_nats_per_token" at every site; all else stays as measured.
// - With `confidence` there is "confidence", see confidence_json.h.
// Errors: kUnavailable while the search is not complete, unless `partial` is set and every site has
// a score (the answer then has "partial": true; smoothing and confidence need the whole);
// kInfeasible with the reachable range, or the limits that conflict; kInvalidArgument for a
// validation, an unknown pin, a bad option or limit, no budget at all, or one that is no number.
// With a `reprover`, CBC proves the answer again afterwards.
Result<Json> allocate(const std::string& id, const SearchSpec& spec, const Fingerprint& fingerprint,
                      const ScoreTable& table, double effective_bits,
                      const AllocateOptions& options = {}, Reprover* reprover = nullptr);

// The best assignment of every budget:
// {"frontier": [{"effective_bits", "objective_kl_nats", "objective_standard_error" (as above),
//  "knee" (see frontier.h), "assignment": {site: candidate}}…] by growing bits, "exact" (false:
//  only the extreme points, and each says "extreme_only": true), "sites", "scored_sites"}.
// With `partial`, a search under way: of the sites that have a score, with the means so far; then
// there is "partial": true, and every point has "scored_share", scored sites / sites.
// Errors as allocate(); kUnavailable with `partial` only while no site has a score.
Result<Json> frontier_json(const std::string& id, const SearchSpec& spec, const ScoreTable& table,
                           bool partial = false);

}  // namespace bitalloc
