// From the flags of `search` and `submit` to a search spec with its tokens; every bad input is
// found here, before any work starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/search_spec.h"
#include "common/tokens.h"
#include "ops/cli/command_line.h"
#include "ops/cli/limit_flags.h"

namespace bitalloc::cli {

// Flags as given; empty or 0: the recipe's or the default.
struct SearchFlags {
  std::string model;
  std::string data;
  std::string recipe = "kv_fp8_nvfp4_cast_kl_div";
  std::string bits;
  int64_t sequences = 0;  // of the data, or with --memory of the cache
  int64_t length = 0;
  std::string dtype = "float32";
  std::string candidates;  // comma-separated
  std::string encoding;
  std::string scale_policy;
  std::string calibration;
  int64_t batch = 0;
  int64_t sites_per_unit = 0;
  std::vector<std::string> disabled_layers;
  std::string device = "auto";
  std::string id;
  std::string output;
  std::string checkpoint;
  int workers = 1;
  int threads = 0;
  int tensor_parallel = 1;
  MemoryFlags memory;
  int64_t score_sequences = 0;
};

struct SearchInputs {
  SearchSpec spec;
  TokenSet tokens;
  TokenSet calibration;     // empty unless the spec needs it
  int64_t parameters = 0;   // of the model
  int64_t hidden_size = 0;  // of the model
};

// Reads model, data and recipe, and checks them against each other. Errors: kInvalidArgument,
// kMismatch, kUnsupported, each naming file and field.
Result<SearchInputs> read_search_inputs(const SearchFlags& flags, const Context& context);

// The number of `flag`: finite and above 0. Errors: kInvalidArgument.
Result<double> parse_bits(const std::string& text, const std::string& flag);

// The blobs of a `submit` message.
std::vector<std::string> submit_blobs(const SearchInputs& inputs);

// The default of --batch: about 2048 tokens a batch on CPUs, eight times that on GPUs.
int64_t default_batch_sequences(int64_t length, int64_t sequences, const std::string& device);
// The default of --sites-per-unit: at least six units a batch, at most five sites a unit.
int64_t default_sites_per_unit(int64_t sites);

// Full forward passes that the exact search costs, references included: every site's trials run
// only the layers above it.
double forward_passes(const SearchSpec& spec);

// An estimate of what one worker needs: weights, the kept hidden states, q, k and v of one batch,
// and the stacked candidates of one layer.
int64_t worker_memory_bytes(const SearchInputs& inputs);

}  // namespace bitalloc::cli
