// A checkpoint file, as it is and with digest and fingerprint put right: whoever alters a file can
// compute them, and without them nothing behind them would be reached.
#include "common/checkpoint.h"

#include "common/json_text.h"
#include "common/sha256.h"
#include "tests/fuzz/target.h"

namespace bitalloc::fuzz {
namespace {

constexpr int64_t kMaxPlannedUnits = 10'000;  // more only cost time

std::string signed_again(std::string_view input) {
  Result<Json> json = parse_json(input, "checkpoint");
  if (!json.ok() || !json->is_object()) return "";
  (*json)["format"] = "bitalloc-checkpoint";
  (*json)["version"] = 1;
  if (json->contains("spec")) {
    const auto spec = search_spec_from_json((*json)["spec"]);
    if (!spec.ok()) return "";
    if (spec->num_batches() * spec->num_rows() > kMaxPlannedUnits) return "";
    (*json)["fingerprint"] = to_json(fingerprint(*spec));
  }
  json->erase("sha256");
  (*json)["sha256"] = sha256_hex(json_text(*json));
  return json_text(*json);
}

bool parse(std::string_view text) {
  const auto checkpoint = parse_checkpoint(text, "file");
  if (!checkpoint.ok()) return false;
  const std::string written = serialize(*checkpoint);
  const auto again = parse_checkpoint(written, "file");
  BA_CHECK(again.ok(), "refused what it wrote: " + again.error().message);
  BA_CHECK(serialize(*again) == written, "another checkpoint than went in");
  return true;
}

}  // namespace

bool accepts(std::string_view input) {
  const std::string text = signed_again(input);
  if (!text.empty() && parse(text)) return true;
  return parse(input);
}

}  // namespace bitalloc::fuzz
