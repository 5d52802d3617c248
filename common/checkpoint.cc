#include "common/checkpoint.h"

#include "common/files.h"
#include "common/sha256.h"

namespace bitalloc {
namespace {

constexpr const char* kFormatName = "bitalloc-checkpoint";
constexpr int kVersion = 1;

Json result_to_json(const UnitResult& result) {
  return {{"unit", unit_name(result.unit)},
          {"sums", result.sums},
          {"tokens", result.tokens},
          {"amax", result.amax}};
}

Result<UnitResult> result_from_json(const Json& json, const SearchSpec& spec) {
  const std::string where = "results";
  UnitResult result;
  BA_ASSIGN_OR_RETURN(const auto name, json_field<std::string>(json, "unit", where));
  BA_ASSIGN_OR_RETURN(result.unit, parse_unit_name(name));
  BA_ASSIGN_OR_RETURN(result.sums, json_field<std::vector<double>>(json, "sums", where));
  BA_ASSIGN_OR_RETURN(result.tokens, json_field<std::vector<int64_t>>(json, "tokens", where));
  BA_ASSIGN_OR_RETURN(result.amax, json_field<std::vector<float>>(json, "amax", where));
  BA_RETURN_IF_ERROR(validate(result, spec));
  return result;
}

Status check_envelope(Json& json) {
  BA_ASSIGN_OR_RETURN(const auto format, json_field<std::string>(json, "format", "checkpoint"));
  if (format != kFormatName) return invalid_argument("not a bitalloc checkpoint", "format");
  BA_ASSIGN_OR_RETURN(const auto version, json_field<int>(json, "version", "checkpoint"));
  if (version != kVersion) {
    return unsupported(fmt::format("checkpoint version {} is not {}", version, kVersion), "version",
                       "use the bitalloc that wrote it");
  }
  BA_ASSIGN_OR_RETURN(const auto digest, json_field<std::string>(json, "sha256", "checkpoint"));
  json.erase("sha256");
  if (sha256_hex(json.dump()) != digest) {
    return invalid_argument("the content does not match its sha256", "sha256",
                            "the file was altered or cut; take a new copy");
  }
  return {};
}

Result<Checkpoint> parse(std::string_view text) {
  BA_ASSIGN_OR_RETURN(Json json, parse_json(text, "checkpoint"));
  BA_RETURN_IF_ERROR(check_envelope(json));
  BA_ASSIGN_OR_RETURN(const auto id, json_field<std::string>(json, "id", "checkpoint"));
  BA_RETURN_IF_ERROR(validate_search_id(id));
  BA_ASSIGN_OR_RETURN(const Json spec_json, json_field<Json>(json, "spec", "checkpoint"));
  BA_ASSIGN_OR_RETURN(SearchSpec spec, search_spec_from_json(spec_json));
  BA_ASSIGN_OR_RETURN(const Json print_json, json_field<Json>(json, "fingerprint", "checkpoint"));
  BA_ASSIGN_OR_RETURN(Fingerprint print, fingerprint_from_json(print_json));
  BA_RETURN_IF_ERROR(same_fingerprint(fingerprint(spec), print, "the fingerprint in the file"));
  Checkpoint checkpoint{id, spec, print, ScoreTable(spec)};
  BA_ASSIGN_OR_RETURN(const Json results, json_field<Json>(json, "results", "checkpoint"));
  if (!results.is_array()) return invalid_argument("results is not a list", "results");
  for (const Json& row : results) {
    BA_ASSIGN_OR_RETURN(const UnitResult result, result_from_json(row, spec));
    if (!checkpoint.table.planned(result.unit)) {
      return invalid_argument(
          fmt::format("unit {} is not one of this search", unit_name(result.unit)), "results");
    }
    if (checkpoint.table.add(result) != ScoreTable::Added::kNew) {
      return invalid_argument(fmt::format("unit {} is there twice", unit_name(result.unit)),
                              "results");
    }
  }
  return checkpoint;
}

}  // namespace

// The text of one JSON object with its keys in order, written piece by piece: as one JSON value, a
// million results would take ten times their size.
std::string serialize(const Checkpoint& checkpoint) {
  std::string text =
      fmt::format(R"({{"fingerprint":{},"format":"{}","id":{},"results":[)",
                  to_json(checkpoint.fingerprint).dump(), kFormatName, Json(checkpoint.id).dump());
  for (const UnitId& unit : checkpoint.table.units()) {
    if (!checkpoint.table.has(unit)) continue;
    if (text.back() != '[') text += ',';
    text += result_to_json(checkpoint.table.result(unit)).dump();
  }
  text += ']';
  const size_t digest_at = text.size();
  text += fmt::format(R"(,"spec":{},"units_done":{},"units_total":{},"version":{}}})",
                      to_json(checkpoint.spec).dump(), checkpoint.table.units_done(),
                      checkpoint.table.units_total(), kVersion);
  text.insert(digest_at, fmt::format(R"(,"sha256":"{}")", sha256_hex(text)));
  return text + "\n";
}

Result<Checkpoint> parse_checkpoint(std::string_view text, const std::string& what) {
  Result<Checkpoint> checkpoint = parse(text);
  if (!checkpoint.ok()) return std::move(checkpoint).error().with_context(what);
  return checkpoint;
}

Result<Checkpoint> read_checkpoint(const std::filesystem::path& file) {
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(file));
  return parse_checkpoint(text, file.string());
}

Status write_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& file) {
  return write_file_atomically(file, serialize(checkpoint));
}

}  // namespace bitalloc
