#include "coordinator/submission.h"

#include <algorithm>

#include "common/checkpoint.h"
#include "common/wire.h"
#include "solver/allocate.h"

namespace bitalloc {
namespace {

constexpr double kSmallestShare = 0.01;
constexpr double kLargestShare = 100;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Before anything is planned: a spec of a few bytes must not ask for 10^15 units.
Status check_size(const SearchSpec& spec) {
  const int64_t units = spec.num_calibration_batches() +
                        spec.num_batches() * ceil_div(spec.num_rows(), spec.sites_per_unit);
  if (units > kMaxUnits) {
    return resource_exhausted(
        fmt::format("the search would have {} units; the limit is {}", units, kMaxUnits),
        "spec.sites_per_unit", "put more sites into a unit or more sequences into a batch");
  }
  const int64_t sequences = std::min(spec.batch_sequences, spec.sequences);
  const int64_t rows = std::min(spec.sites_per_unit, spec.num_rows());
  const double bytes = 8.0 * static_cast<double>(rows) * static_cast<double>(spec.num_columns()) *
                       static_cast<double>(metrics_per_sequence(spec)) *
                       static_cast<double>(sequences);
  if (bytes > 0.9 * static_cast<double>(wire::kMaxBlobBytes)) {
    return resource_exhausted(fmt::format("the result of one unit would have {:.0f} bytes", bytes),
                              "spec.batch_sequences", "put fewer sites or sequences into a unit");
  }
  return {};
}

Status check_budget(const SearchSpec& spec) {
  if (spec.kind != JobKind::kSearch) return {};
  if (spec.memory) BA_RETURN_IF_ERROR(check_memory(spec, *spec.memory));
  if (spec.effective_bits == 0) return {};  // none asked
  const BitsRange range = reachable_bits(spec);
  if (spec.effective_bits >= range.lowest * (1 - 1e-10)) return {};
  return infeasible(
      fmt::format("a budget of {} effective bits is below the lowest that the candidates reach, {}",
                  spec.effective_bits, range.lowest),
      "effective_bits",
      fmt::format("ask for {} to {}, or add a cheaper candidate", range.lowest, range.highest));
}

Result<TokenSet> take_tokens(const std::vector<std::string>& blobs, size_t first, int64_t sequences,
                             int64_t length, int64_t vocab_size, const std::string& digest,
                             const std::string& what) {
  BA_ASSIGN_OR_RETURN(TokenSet tokens,
                      tokens_from_blobs(sequences, length, blobs[first], blobs[first + 1]));
  BA_RETURN_IF_ERROR(validate(tokens, vocab_size, what));
  if (tokens_sha256(tokens) != digest) {
    return invalid_argument(fmt::format("the {} are not those of the digest in the spec", what),
                            what, "send the tokens that the spec was made from");
  }
  return tokens;
}

Result<SharedTokens> parse_tokens(const SearchSpec& spec, const std::vector<std::string>& blobs) {
  const bool calibrated = spec.calibration_sequences > 0;
  const size_t expected = calibrated ? 4 : 2;
  if (blobs.size() != expected) {
    return invalid_argument(
        fmt::format("{} blobs came with the search, not {}", blobs.size(), expected), "blobs");
  }
  auto tokens = std::make_shared<SearchTokens>();
  BA_ASSIGN_OR_RETURN(tokens->scored,
                      take_tokens(blobs, 0, spec.sequences, spec.length, spec.model.vocab_size,
                                  spec.tokens_sha256, "tokens"));
  if (calibrated) {
    BA_ASSIGN_OR_RETURN(
        tokens->calibration,
        take_tokens(blobs, 2, spec.calibration_sequences, spec.calibration_length,
                    spec.model.vocab_size, spec.calibration_sha256, "calibration tokens"));
  }
  return SharedTokens(std::move(tokens));
}

}  // namespace

std::string default_search_id(const SearchSpec& spec, const Fingerprint& fingerprint) {
  std::string name = spec.model.name.substr(0, 100);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return c >= 128 || (!std::isalnum(c) && c != '.' && c != '_'); }, '-');
  const std::string id = name + "-" + fingerprint.sha256.substr(0, 10);
  return validate_search_id(id).ok() ? id : "search-" + fingerprint.sha256.substr(0, 10);
}

Result<Submission> parse_submit(const Json& header, const std::vector<std::string>& blobs) {
  Submission submission;
  SearchRecord& record = submission.record;
  BA_ASSIGN_OR_RETURN(record.id, json_field_or<std::string>(header, "id", "submit", ""));
  if (!record.id.empty()) BA_RETURN_IF_ERROR(validate_search_id(record.id));
  BA_ASSIGN_OR_RETURN(record.status.priority,
                      json_field_or<int64_t>(header, "priority", "submit", 0));
  BA_ASSIGN_OR_RETURN(record.status.share, json_field_or<double>(header, "share", "submit", 1.0));
  if (!(record.status.share >= kSmallestShare && record.status.share <= kLargestShare)) {
    return invalid_argument(
        fmt::format("submit.share must be {} to {}", kSmallestShare, kLargestShare), "share");
  }
  BA_ASSIGN_OR_RETURN(const Json spec, json_field<Json>(header, "spec", "submit"));
  BA_ASSIGN_OR_RETURN(record.spec, search_spec_from_json(spec));
  BA_RETURN_IF_ERROR(check_size(record.spec));
  BA_RETURN_IF_ERROR(check_budget(record.spec));
  BA_ASSIGN_OR_RETURN(submission.tokens, parse_tokens(record.spec, blobs));
  record.fingerprint = fingerprint(record.spec);
  if (record.id.empty()) record.id = default_search_id(record.spec, record.fingerprint);
  return submission;
}

Result<Submission> parse_import(const Json& header, const std::vector<std::string>& blobs) {
  if (blobs.size() != 1) return invalid_argument("an import is one blob", "blobs");
  BA_ASSIGN_OR_RETURN(const auto id, json_field_or<std::string>(header, "id", "import", ""));
  if (!id.empty()) BA_RETURN_IF_ERROR(validate_search_id(id));
  BA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, parse_checkpoint(blobs[0], "checkpoint"));
  BA_RETURN_IF_ERROR(check_size(checkpoint.spec));
  Submission submission;
  SearchRecord& record = submission.record;
  record.id = id.empty() ? checkpoint.id : id;
  record.spec = checkpoint.spec;
  record.fingerprint = checkpoint.fingerprint;
  for (const UnitId& unit : checkpoint.table.units()) {
    if (checkpoint.table.has(unit)) record.results.push_back(checkpoint.table.result(unit));
  }
  return submission;
}

}  // namespace bitalloc
