// From the message `submit` or `import` to a search that may be accepted: every check that needs
// neither the queue nor the store. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "coordinator/queue.h"

namespace bitalloc {

constexpr int64_t kMaxUnits = 1'000'000;  // of one search

struct Submission {
  SearchRecord record;
  SharedTokens tokens;  // null for an import
};

// Errors: kInvalidArgument (spec, blobs, ids beyond the vocabulary, a wrong digest),
// kResourceExhausted (too many units, a unit whose result fits no message), kInfeasible (a budget
// below the cheapest candidates).
Result<Submission> parse_submit(const Json& header, const std::vector<std::string>& blobs);
Result<Submission> parse_import(const Json& header, const std::vector<std::string>& blobs);

// "<model's name>-<first 10 digits of the fingerprint>", for who names no id.
std::string default_search_id(const SearchSpec& spec, const Fingerprint& fingerprint);

}  // namespace bitalloc
