// A model's config.json, and what is derived from it before any weight is read.
#include "common/model_config.h"

#include "common/json.h"
#include "common/model_files.h"
#include "tests/fuzz/target.h"

bool bitalloc::fuzz::accepts(std::string_view input) {
  const auto config = parse_model_config(input);
  if (!config.ok()) {
    BA_CHECK(!config.error().message.empty(), "an error without a message");
    return false;
  }
  BA_CHECK(parse_json(canonical_config_json(*config), "canonical").ok(), "canonical form");
  const auto sites = kv_sites(*config);
  BA_CHECK(sites.size() == static_cast<size_t>(config->num_layers), "one site a layer");
  const auto frequencies = rope_inverse_frequencies(*config);
  BA_CHECK(frequencies.size() == static_cast<size_t>(config->head_dim / 2), "frequencies");
  BA_CHECK(!expected_tensors(*config).empty(), "no tensor");
  return true;
}
