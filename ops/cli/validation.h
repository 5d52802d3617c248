// Held-out quality of whole assignments: the job, and the numbers out of its results.
#pragma once

#include <string>
#include <vector>

#include "common/checkpoint.h"
#include "common/json.h"
#include "common/tokens.h"

namespace bitalloc::cli {

// Validates bf16, every candidate everywhere, and `assignment` (an object of the manual) on
// `tokens`, with scales as the search had them. Errors: kInvalidArgument.
Result<SearchSpec> validation_spec(const Checkpoint& search, const Json& assignment,
                                   const TokenSet& tokens);

// The job that measures `configurations` as wholes on `tokens`, with scales as the search had them.
// Errors: kInvalidArgument.
Result<SearchSpec> configurations_spec(const Checkpoint& search,
                                       std::vector<Configuration> configurations,
                                       const TokenSet& tokens, int64_t batch_sequences);

// Rows of `validate --json`, one a configuration. KL and top-1 agreement are means over positions
// with mask 1; perplexity is exp of the mean over positions whose own and next mask are 1.
// Standard errors are over sequences (ratio estimator, linearised); null for one sequence.
// REQUIRES: the validation is complete, `tokens` are those that it ran on.
Json validation_rows(const Checkpoint& validation, const TokenSet& tokens);

std::string validation_text(const Json& rows);

}  // namespace bitalloc::cli
