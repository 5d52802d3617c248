#include "common/positions.h"

#include <fmt/format.h>

namespace bitalloc {

Status check_positions(const TokenSet& tokens, const std::vector<Candidate>& candidates,
                       const std::string& field) {
  const auto counts = [](const Format& format) {
    return format.see != See::kAll || format.axis == Axis::kChannel;
  };
  for (const Candidate& candidate : candidates) {
    if (!counts(candidate.k) && !counts(candidate.v)) continue;
    const int64_t sequence = first_with_holes(tokens);
    if (sequence < 0) return {};
    return invalid_argument(
        fmt::format("{}: sequence {} has padding before a real token, which {} cannot be scored on",
                    field, sequence, candidate_name(candidate)),
        field, "pad on the right, or leave this candidate out");
  }
  return {};
}

}  // namespace bitalloc
