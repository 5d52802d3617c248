// From the scores of a search to an assignment: the solver's problem out of a score table, and its
// answer as the JSON of the manual. Needs no service: the command line calls it on checkpoint
// files, the coordinator on what it holds.
//
// Thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/fingerprint.h"
#include "common/json.h"
#include "common/score_table.h"
#include "common/search_spec.h"
#include "solver/reprover.h"

namespace bitalloc {

// Site → candidate that it must take. A site is its name or any run of whole dotted parts of it
// that fits one site only ("layers.0" for "model.layers.0.self_attn"). `bf16` is always allowed: it
// is the reference and costs no nats, whether or not it was among the candidates.
using Pins = std::map<std::string, std::string>;

// What budgets make sense for the sites of `spec` (its candidates, pins aside).
struct BitsRange {
  double lowest = 0;   // every site at its cheapest candidate
  double highest = 0;  // every site at its dearest one
};
BitsRange reachable_bits(const SearchSpec& spec);

// The best assignment within `effective_bits`:
// {"search", "fingerprint", "budget": {"effective_bits"}, "effective_bits", "objective_kl_nats",
//  "proven_optimal", "gap", "sites": [{"site", "candidate", "bits", "kl_nats_per_token",
//  "standard_error" (null for one sequence)}…]}; objective_kl_nats = Σ kl_nats_per_token. With
// `with_scores` a site also has "scores": {candidate: {"kl_sum_nats", "tokens",
// "kl_nats_per_token", "standard_error"}}.
// Errors: kUnavailable while the search is not complete, unless `partial` is set and every site has
// a score (the answer then has "partial": true); kInfeasible with the reachable range;
// kInvalidArgument for a validation, an unknown pin or a budget that is no number. With a
// `reprover`, CBC proves the answer again afterwards.
Result<Json> allocate(const std::string& id, const SearchSpec& spec, const Fingerprint& fingerprint,
                      const ScoreTable& table, double effective_bits, const Pins& pins,
                      bool with_scores, bool partial = false, Reprover* reprover = nullptr);

// The best assignment of every budget, by growing bits:
// [{"effective_bits", "objective_kl_nats", "assignment": {site: candidate}}…].
// Errors as allocate().
Result<Json> frontier_json(const std::string& id, const SearchSpec& spec, const ScoreTable& table,
                           const Pins& pins = {});

// Rows of a validation: [{"row" (index), "configuration", "effective_bits", "kl_nats_per_token",
// "perplexity" (exp of the mean negative log-likelihood of the next tokens), "top1_agreement" (of
// the scored positions), "standard_error": {…the last three…}, "metrics": [Score of each
// Metric]}…]. Errors: kInvalidArgument for a search, kUnavailable while it is not complete.
Result<Json> validation_json(const std::string& id, const SearchSpec& spec,
                             const ScoreTable& table);

// {"kl_sum_nats", "tokens", "kl_nats_per_token", "standard_error"}.
Json score_json(const Score& score);

}  // namespace bitalloc
