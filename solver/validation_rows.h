// The rows of a validation: what whole configurations measured, as the JSON of the manual.
//
// Pure functions; thread-safe.
#pragma once

#include <string>

#include "common/json.h"
#include "common/score_table.h"
#include "common/search_spec.h"

namespace bitalloc {

// Rows of a validation: [{"row" (index), "configuration", "effective_bits", "kl_nats_per_token",
// "perplexity" (exp of the mean negative log-likelihood of the next tokens), "top1_agreement" (of
// the scored positions), "standard_error": {…the last three…}, "metrics": [Score of each
// Metric]}…]. Errors: kInvalidArgument for a search, kUnavailable while it is not complete.
Result<Json> validation_json(const std::string& id, const SearchSpec& spec,
                             const ScoreTable& table);

// {"kl_sum_nats", "tokens", "kl_nats_per_token", "standard_error" (null when there is none)}.
Json score_json(const Score& score);

// The number, or null.
Json optional_json(const std::optional<double>& value);

}  // namespace bitalloc
