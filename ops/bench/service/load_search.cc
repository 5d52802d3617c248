#include "ops/bench/service/load_search.h"

#include <fmt/format.h>

namespace bitalloc::bench {
namespace {

constexpr int64_t kLayers = 32;
constexpr int64_t kVocabSize = 128'256;
constexpr int64_t kKvWidth = 8 * 128;  // num_kv_heads × head_dim

SearchSpec model_spec() {
  SearchSpec spec;
  spec.model = {"/models/Llama-3.1-8B", "Llama-3.1-8B", "llama",   std::string(64, 'a'),
                std::string(64, 'b'),   kLayers,        kVocabSize};
  spec.dtype = "bfloat16";
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    spec.sites.push_back(
        {fmt::format("model.layers.{}.self_attn", layer), layer, kKvWidth, kKvWidth});
  }
  for (const char* name : {"fp8_e4m3/fp8_e4m3", "nvfp4/nvfp4", "fp8_e4m3/nvfp4"}) {
    spec.candidates.push_back(*parse_candidate(name));
  }
  spec.recipe = "kv_fp8_nvfp4_cast_kl_div";
  spec.effective_bits = 5.4;
  return spec;
}

LoadSearch with_tokens(SearchSpec spec) {
  LoadSearch search;
  search.tokens = {spec.sequences, spec.length, {}, {}};
  const int64_t count = spec.sequences * spec.length;
  for (int64_t i = 0; i < count; ++i) {
    search.tokens.input_ids.push_back(static_cast<int32_t>((i * 7919) % kVocabSize));
  }
  search.tokens.mask.assign(static_cast<size_t>(count), 1);
  spec.tokens_sha256 = tokens_sha256(search.tokens);
  search.blobs = {ids_to_blob(search.tokens), mask_to_blob(search.tokens)};
  search.units = plan_units(spec);
  search.spec = std::move(spec);
  return search;
}

}  // namespace

LoadSearch realistic_search(int64_t units) {
  SearchSpec spec = model_spec();
  spec.length = 512;
  spec.batch_sequences = 4;
  spec.sites_per_unit = 5;
  const int64_t units_a_batch = (kLayers + spec.sites_per_unit - 1) / spec.sites_per_unit;
  spec.sequences = (units + units_a_batch - 1) / units_a_batch * spec.batch_sequences;
  return with_tokens(std::move(spec));
}

LoadSearch smallest_units_search(int64_t units) {
  SearchSpec spec = model_spec();
  spec.length = 8;
  spec.sequences = units / kLayers;
  return with_tokens(std::move(spec));
}

std::string load_result(const SearchSpec& spec, const UnitId& unit) {
  UnitResult result;
  result.unit = unit;
  const auto sequences = static_cast<size_t>(spec.batch_size(unit.batch));
  const auto rows = static_cast<size_t>(unit.row_end - unit.row_begin);
  result.sums.resize(rows * static_cast<size_t>(spec.num_columns()) * sequences);
  for (size_t i = 0; i < result.sums.size(); ++i) {
    result.sums[i] = 1e-3 * static_cast<double>(unit.batch.value + 1) +
                     1e-7 * static_cast<double>(unit.row_begin * 1'000) +
                     1e-9 * static_cast<double>(i);
  }
  result.tokens.assign(sequences, spec.length);
  return pack(result);
}

}  // namespace bitalloc::bench
