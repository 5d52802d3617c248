// The identity of a search: equal fingerprints mean that scores may be reused.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/search_spec.h"

namespace bitalloc {

// Grows whenever a change of kernels/ or worker/ moves scores by more than rounding.
constexpr int kNumericsVersion = 1;

struct Fingerprint {
  std::string sha256;                        // over the parts
  std::map<std::string, std::string> parts;  // what feeds it, by a name for people
};

// Parts: model weights, model config, dtype, tokens, calibration tokens, sites, candidates (or
// configurations), batching, numerics version.
Fingerprint fingerprint(const SearchSpec& spec);

// Names of the parts that differ, e.g. {"model weights", "tokens"}.
std::vector<std::string> differing_parts(const Fingerprint& a, const Fingerprint& b);

// The refusal for inputs whose fingerprint is not the one of `holder` ("search 'x'",
// "checkpoint file 'y'"): kMismatch naming every part that differs. OK when equal.
Status same_fingerprint(const Fingerprint& wanted, const Fingerprint& held,
                        const std::string& holder);

Json to_json(const Fingerprint& fingerprint);
// Errors: kInvalidArgument when the digest is not that of the parts.
Result<Fingerprint> fingerprint_from_json(const Json& json);

}  // namespace bitalloc
