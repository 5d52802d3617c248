// confidence.h as JSON, with the names of sites and candidates: what `--confidence` adds.
//
// Pure functions; thread-safe.
#pragma once

#include <optional>
#include <string>

#include "common/json.h"
#include "solver/choices.h"
#include "solver/confidence.h"

namespace bitalloc {

// json["confidence"]: absent, null or false: nothing; true: the defaults; an object: those of
// "resamples", "seed", "threshold" that it has. Errors: kInvalidArgument naming the field.
Result<std::optional<ConfidenceOptions>> confidence_options(const Json& json,
                                                            const std::string& where);
Json to_json(const ConfidenceOptions& options);

struct ConfidenceQuestion {
  const SearchSpec& spec;
  const std::vector<SiteChoices>& choices;
  const Problem& problem;
  const Samples& samples;
  double effective_bits;
  const std::vector<int>& picked;
  const ConfidenceOptions& options;
};

// {"sequences", "resamples", "resamples_asked" (more when time ran out), "resamples_unproven",
//  "seed", "threshold", "interval_level", "objective_interval": [low, high],
//  "selection_bias_kl_nats", "stability": {site: share}, "undecided": [{"site", "candidate",
//  "stability", "runner_up", "runner_up_share", "difference_kl_nats", "difference_standard_error",
//  "more_sequences", "more_batches" (both null when no amount helps)}…], "monotonicity_violations":
//  [{"site", "candidate", "bits", "scores_worse_than", "excess_kl_nats", "standard_error"}…]}, all
// in nats a token. Of one sequence only {"sequences": 1, "note"}: there are no errors then.
Result<Json> confidence_json(const ConfidenceQuestion& question);

}  // namespace bitalloc
