// The spec of a submitted search: JSON of the message `submit`.
#include "common/search_spec.h"

#include "common/fingerprint.h"
#include "common/json_text.h"
#include "tests/fuzz/target.h"

bool bitalloc::fuzz::accepts(std::string_view input) {
  const auto json = parse_json(input, "spec");
  if (!json.ok()) return false;
  const auto spec = search_spec_from_json(*json);
  if (!spec.ok()) {
    json_text(error_to_json(spec.error()));
    return false;
  }
  const Json written = to_json(*spec);
  const auto again = search_spec_from_json(*parse_json(json_text(written), "spec"));
  BA_CHECK(again.ok(), "refused what it wrote: " + again.error().message);
  BA_CHECK(to_json(*again) == written, "another spec than went in");
  BA_CHECK(fingerprint(*again).sha256 == fingerprint(*spec).sha256, "another fingerprint");
  return true;
}
