// A search as one file: spec, fingerprint and every result, as JSON with a digest. Enough to
// re-budget and export without service, model or workers, and to resume elsewhere.
#pragma once

#include <filesystem>
#include <string>

#include "common/fingerprint.h"
#include "common/score_table.h"
#include "common/search_spec.h"

namespace bitalloc {

struct Checkpoint {
  std::string id;
  SearchSpec spec;
  Fingerprint fingerprint;
  ScoreTable table;
};

// {"format": "bitalloc-checkpoint", "version": 1, "id", "spec", "fingerprint", "units_total",
//  "units_done", "results": [{"unit", "sums", "tokens", "amax"}, …], "sha256"}.
// Doubles keep every bit.
std::string serialize(const Checkpoint& checkpoint);
// Errors: kInvalidArgument naming `what` and the field: not a checkpoint, altered (digest), another
// version, results that do not fit the spec.
Result<Checkpoint> parse_checkpoint(std::string_view text, const std::string& what);

Result<Checkpoint> read_checkpoint(const std::filesystem::path& file);
Status write_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& file);

}  // namespace bitalloc
