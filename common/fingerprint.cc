#include "common/fingerprint.h"

#include <fmt/ranges.h>

#include "common/sha256.h"

namespace bitalloc {
namespace {

std::string digest(const std::map<std::string, std::string>& parts) {
  return sha256_hex(Json(parts).dump());
}

std::string sites_text(const SearchSpec& spec) {
  std::string text;
  for (const Site& site : spec.sites) {
    text += fmt::format("{}:{}:{}:{};", site.name, site.layer, site.k_width, site.v_width);
  }
  return text;
}

std::string candidates_text(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& candidate : candidates) text += candidate_name(candidate) + ";";
  return text;
}

}  // namespace

Fingerprint fingerprint(const SearchSpec& spec) {
  Fingerprint result;
  auto& parts = result.parts;
  parts["model weights"] = spec.model.weights_sha256;
  parts["model config"] = spec.model.config_sha256;
  parts["dtype"] = spec.dtype;
  parts["tokens"] = spec.tokens_sha256;
  parts["calibration tokens"] = spec.calibration_sha256;
  parts["sites"] = sites_text(spec);
  parts["candidates"] = candidates_text(spec.candidates);
  for (const auto& configuration : spec.configurations) {
    parts["configurations"] += candidates_text(configuration.candidates) + "|";
  }
  parts["batching"] = fmt::format("{} sequences a batch, {} sites a unit", spec.batch_sequences,
                                  spec.sites_per_unit);
  if (!spec.amax.empty()) parts["amax"] = Json(spec.amax).dump();
  parts["numerics version"] = fmt::format("{}", kNumericsVersion);
  result.sha256 = digest(parts);
  return result;
}

std::vector<std::string> differing_parts(const Fingerprint& a, const Fingerprint& b) {
  std::vector<std::string> names;
  for (const auto& [name, value] : a.parts) {
    const auto other = b.parts.find(name);
    if (other == b.parts.end() || other->second != value) names.push_back(name);
  }
  for (const auto& [name, value] : b.parts) {
    if (!a.parts.contains(name)) names.push_back(name);
  }
  return names;
}

Status same_fingerprint(const Fingerprint& wanted, const Fingerprint& held,
                        const std::string& holder) {
  if (wanted.sha256 == held.sha256) return {};
  return mismatch(fmt::format("{} was made from something else; different: {}", holder,
                              fmt::join(differing_parts(wanted, held), ", ")),
                  "fingerprint",
                  "give the same inputs again, or start a new search under another id");
}

Json to_json(const Fingerprint& fingerprint) {
  return {{"sha256", fingerprint.sha256}, {"parts", fingerprint.parts}};
}

Result<Fingerprint> fingerprint_from_json(const Json& json) {
  Fingerprint result;
  BA_ASSIGN_OR_RETURN(result.sha256, json_field<std::string>(json, "sha256", "fingerprint"));
  using Parts = std::map<std::string, std::string>;
  BA_ASSIGN_OR_RETURN(result.parts, json_field<Parts>(json, "parts", "fingerprint"));
  if (digest(result.parts) != result.sha256) {
    return invalid_argument("the fingerprint is not the digest of its parts", "fingerprint.sha256",
                            "the file was altered; take a new copy");
  }
  return result;
}

}  // namespace bitalloc
