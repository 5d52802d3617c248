#include "worker/unit_runner.h"

#include <cstring>

namespace bitalloc {

Result<UnitWork> unit_work_from_message(const Json& header, const std::vector<std::string>& blobs) {
  UnitWork work;
  BA_ASSIGN_OR_RETURN(work.search.value, json_field<std::string>(header, "search", "unit"));
  BA_ASSIGN_OR_RETURN(const auto name, json_field<std::string>(header, "unit", "unit"));
  BA_ASSIGN_OR_RETURN(work.unit, parse_unit_name(name));
  BA_ASSIGN_OR_RETURN(work.fence.value, json_field<int64_t>(header, "fence", "unit"));
  BA_ASSIGN_OR_RETURN(const Json spec, json_field<Json>(header, "spec", "unit"));
  BA_ASSIGN_OR_RETURN(work.spec, search_spec_from_json(spec));
  if (blobs.size() < 2) return invalid_argument("a unit comes with ids and mask", "unit");
  const bool scoring = work.unit.kind == UnitKind::kScore;
  const int64_t length = scoring ? work.spec.length : work.spec.calibration_length;
  const int64_t sequences = length > 0 ? static_cast<int64_t>(blobs[1].size()) / length : 0;
  BA_ASSIGN_OR_RETURN(work.tokens, tokens_from_blobs(sequences, length, blobs[0], blobs[1]));
  BA_RETURN_IF_ERROR(validate(work.tokens, work.spec.model.vocab_size, "unit"));
  if (!scoring) return work;
  if (work.unit.row_end > work.spec.num_rows() || work.unit.batch.value < 0 ||
      work.unit.batch.value >= work.spec.num_batches() ||
      sequences != work.spec.batch_size(work.unit.batch)) {
    return invalid_argument("the unit does not fit its spec", "unit");
  }
  work.amax.resize(2 * work.spec.sites.size());
  if (blobs.size() < 3 || blobs[2].size() != work.amax.size() * sizeof(float)) {
    return invalid_argument("a scoring unit comes with two amax a site", "amax");
  }
  std::memcpy(work.amax.data(), blobs[2].data(), blobs[2].size());
  return work;
}

}  // namespace bitalloc
