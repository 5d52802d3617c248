// What a search is: the model, the sites, the candidates and the tokens that score them.
// Everything here that can change a score is part of the fingerprint (fingerprint.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/json.h"
#include "common/kv_budget.h"
#include "common/status.h"
#include "kernels/formats/format.h"

namespace bitalloc {

struct ModelRef {
  std::string path;    // directory on the workers; not part of the fingerprint
  std::string name;    // last component of the path, for people
  std::string family;  // "llama", "mistral", "qwen2", "qwen3"
  std::string weights_sha256;
  std::string config_sha256;
  int64_t num_layers = 0;
  int64_t vocab_size = 0;
  // For counting bytes of cache (kv_memory.h) only, so not part of the fingerprint; 0 and empty in
  // searches of releases that did not write them.
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t parameters = 0;  // tied ones counted once
  std::vector<int64_t> sliding_window =
      {};  // [layers] tokens a query sees, 0 = all; empty: all of 0
};

// What one decision covers: here, one layer's K and V cache.
struct Site {
  std::string name;     // the attention module, "model.layers.0.self_attn"
  int64_t layer = 0;    // index of the decoder layer
  int64_t k_width = 0;  // elements a token: num_kv_heads × head_dim
  int64_t v_width = 0;
  // Elements of a head; 0, in searches of releases that did not write it: one head as wide as the
  // site. Not part of the fingerprint: the model's configuration is.
  int64_t head_dim = 0;
  int64_t context = 0;  // tokens of a sequence that bits are counted at; see CacheShape
};

// With a head as wide as the site where the site does not say.
CacheShape cache_shape(const Site& site);
// Stored bits an element of `candidate` at `site`: (k_width·k_bits + v_width·v_bits) / both widths.
double candidate_bits(const Site& site, const Candidate& candidate);

// A whole assignment that a validation measures at once.
struct Configuration {
  std::string name;                   // "nvfp4/nvfp4", "assignment at 5.4 bits"
  std::vector<Candidate> candidates;  // one a site, in the order of SearchSpec::sites
};

enum class JobKind {
  kSearch,      // every site × candidate alone, the rest at the reference
  kValidation,  // every configuration as a whole, on other tokens
};

struct SearchSpec {
  JobKind kind = JobKind::kSearch;
  ModelRef model;
  std::string dtype = "float32";  // of the reference and the trials: "float32" or "bfloat16"
  std::vector<Site> sites;
  std::vector<std::string> disabled_sites;    // kept at their format, outside the budget
  std::vector<Candidate> candidates;          // kSearch
  std::vector<Configuration> configurations;  // kValidation
  int64_t sequences = 0;                      // scored sequences
  int64_t length = 0;                         // tokens a sequence, padding included
  int64_t batch_sequences = 1;                // sequences a scoring batch (the last may have fewer)
  int64_t sites_per_unit = 1;                 // sites (or configurations) a unit
  int64_t calibration_sequences = 0;          // 0: nothing to calibrate
  int64_t calibration_length = 0;
  // [sites × 2] amax of K and V when already known (a validation takes those of its search);
  // empty otherwise.
  std::vector<float> amax;
  std::string tokens_sha256;
  std::string calibration_sha256;  // empty when calibration_sequences is 0
  std::string recipe;              // name, for people
  // The budget asked at submission, in bits, bytes or both; not part of the fingerprint.
  double effective_bits = 0;  // 0: none
  std::optional<KvBudget> memory;

  // Rows of the score table: sites of a search, configurations of a validation.
  int64_t num_rows() const;
  // Columns: candidates of a search, one for a validation.
  int64_t num_columns() const;
  int64_t num_batches() const;
  int64_t num_calibration_batches() const;
  // Sequences in scoring batch `batch`.
  int64_t batch_size(BatchIndex batch) const;
  // Some format has a calibrated scale and `amax` is not known yet.
  bool needs_calibration() const;
};

// Everything a coordinator can check without the model: counts, bounds, names, duplicates.
// Errors: kInvalidArgument naming the field.
Status validate(const SearchSpec& spec);

Json to_json(const SearchSpec& spec);
Result<SearchSpec> search_spec_from_json(const Json& json);

// 1…128 of [A-Za-z0-9._-], not starting with '.' or '-': it becomes part of file names and keys.
Status validate_search_id(const std::string& id);

}  // namespace bitalloc
