// Formats that count positions, and the sequences that they can be scored on.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "common/tokens.h"
#include "kernels/formats/format.h"

namespace bitalloc {

// Formats that count positions (windows, prompts, groups along tokens) want sequences that begin
// with their first real token. Errors: kInvalidArgument naming `field`, the sequence and the
// candidate.
Status check_positions(const TokenSet& tokens, const std::vector<Candidate>& candidates,
                       const std::string& field);

}  // namespace bitalloc
