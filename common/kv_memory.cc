#include "common/kv_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/bytes_text.h"
#include "common/tensor_parallel.h"

namespace bitalloc {
namespace {

constexpr int64_t kMaxSequences = int64_t{1} << 20;
constexpr int64_t kMaxBlockTokens = 1 << 16;
constexpr int64_t kMaxBytes = int64_t{1} << 50;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status in_range(int64_t value, int64_t low, int64_t high, const char* field) {
  if (value >= low && value <= high) return {};
  return invalid_argument(fmt::format("{} is {}; it must be {} to {}", field, value, low, high),
                          field);
}

// Of one side of a layer, on one rank, for one token. `width`: elements a token, all heads.
int64_t row_bytes(const ModelRef& model, int64_t width, const Format& format, int64_t ranks) {
  const int64_t heads = std::max<int64_t>(1, model.num_kv_heads);
  const int64_t head_width = width / heads;
  const int64_t heads_here = ceil_div(heads, ranks);
  const double bits = bits_per_element(format, {head_width}) * static_cast<double>(head_width);
  return heads_here * static_cast<int64_t>(std::ceil(bits / 8));
}

int64_t window_of(const ModelRef& model, int64_t layer) {
  return model.sliding_window.empty() ? 0 : model.sliding_window[static_cast<size_t>(layer)];
}

// The largest value in 0…`limit` for which `fits` holds. REQUIRES: it holds up to some value only.
template <typename Fits>
int64_t largest(int64_t limit, const Fits& fits) {
  int64_t low = 0;
  while (low < limit) {
    const int64_t middle = low + (limit - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      limit = middle - 1;
    }
  }
  return low;
}

}  // namespace

Status validate(const KvLoad& load, const SearchSpec& spec) {
  BA_RETURN_IF_ERROR(in_range(load.context, 1, kMaxContext, "context"));
  BA_RETURN_IF_ERROR(in_range(load.sequences, 1, kMaxSequences, "sequences"));
  BA_RETURN_IF_ERROR(in_range(load.block_tokens, 1, kMaxBlockTokens, "block_tokens"));
  BA_RETURN_IF_ERROR(in_range(load.tensor_parallel, 1, kMaxTensorParallel, "tp"));
  const int64_t heads = spec.model.num_kv_heads;
  const bool every_layer = std::ssize(spec.sites) == spec.model.num_layers;
  if (heads == 0 && (load.tensor_parallel > 1 || !every_layer)) {
    return unsupported("the search does not say how many KV heads the model has", "memory",
                       "it was made by an earlier release: submit it again");
  }
  if (load.tensor_parallel == 1) return {};
  if (heads % load.tensor_parallel == 0 || load.tensor_parallel % heads == 0) return {};
  return invalid_argument(
      fmt::format("{} KV heads cannot be shared among {} ranks", heads, load.tensor_parallel),
      "tp");
}

Status validate(const KvBudget& budget, const SearchSpec& spec) {
  BA_RETURN_IF_ERROR(in_range(budget.bytes, 1, kMaxBytes, "memory"));
  return validate(budget.load, spec);
}

int64_t weight_bytes(const ModelRef& model, int64_t ranks) {
  constexpr int64_t kBfloat16Bytes = 2;
  return ceil_div(model.parameters * kBfloat16Bytes, ranks);
}

Result<KvBudget> cache_budget(const KvBudget& budget, const SearchSpec& spec) {
  BA_RETURN_IF_ERROR(validate(budget.load, spec));
  KvBudget resolved = budget;
  if (budget.gpu_bytes > 0) {
    if (spec.model.parameters == 0) {
      return unsupported("the search does not say how many parameters its model has", "memory",
                         "give the bytes that are left for the cache: --memory");
    }
    const int64_t weights = weight_bytes(spec.model, budget.load.tensor_parallel);
    resolved.bytes = budget.gpu_bytes - weights;
    if (resolved.bytes <= 0) {
      return infeasible(fmt::format("the weights take {} of the {} on a rank: nothing is left for "
                                    "the cache",
                                    bytes_text(weights), bytes_text(budget.gpu_bytes)),
                        "memory", "share them among more ranks: --serve-tp");
    }
  }
  BA_RETURN_IF_ERROR(validate(resolved, spec));
  return resolved;
}

int64_t kv_tokens(const KvLoad& load, int64_t window) {
  int64_t blocks = ceil_div(load.context, load.block_tokens);
  // The newest `window` tokens begin anywhere in a block, so they touch one more.
  if (window > 0) blocks = std::min(blocks, ceil_div(window - 1, load.block_tokens) + 1);
  return load.sequences * blocks * load.block_tokens;
}

namespace {

// The most tokens of a sequence that are exact at once on its way to `context` tokens: now, or just
// before the last time that some were stored.
int64_t most_exact_tokens(const Format& format, Side side, int64_t context) {
  const Visibility rule = visibility_of(format);
  const int64_t now = exact_tokens(rule, side, context);
  return std::max(now, exact_tokens(rule, side, std::max<int64_t>(0, context - now - 1)));
}

// Blocks of stored tokens; what a format keeps exact of a sequence takes the difference more.
int64_t side_bytes(const ModelRef& model, int64_t width, const Format& format, Side side,
                   const KvLoad& load, int64_t window) {
  const int64_t row = row_bytes(model, width, format, load.tensor_parallel);
  const int64_t exact_row = row_bytes(model, width, Format(), load.tensor_parallel);
  const int64_t held = window > 0 ? std::min(window, load.context) : load.context;
  const int64_t exact = std::min(held, most_exact_tokens(format, side, load.context));
  return kv_tokens(load, window) * row + load.sequences * exact * (exact_row - row);
}

}  // namespace

int64_t kv_bytes(const ModelRef& model, const Site& site, const Candidate& candidate,
                 const KvLoad& load) {
  const int64_t window = window_of(model, site.layer);
  return side_bytes(model, site.k_width, candidate.k, Side::kK, load, window) +
         side_bytes(model, site.v_width, candidate.v, Side::kV, load, window);
}

int64_t fixed_kv_bytes(const SearchSpec& spec, const KvLoad& load) {
  std::vector<bool> is_site(static_cast<size_t>(spec.model.num_layers), false);
  for (const Site& site : spec.sites) is_site[static_cast<size_t>(site.layer)] = true;
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < spec.model.num_layers; ++layer) {
    if (is_site[static_cast<size_t>(layer)]) continue;
    const int64_t width = spec.model.num_kv_heads * spec.model.head_dim;
    bytes += kv_bytes(spec.model, Site{"", layer, width, width}, Candidate{}, load);
  }
  return bytes;
}

int64_t assignment_kv_bytes(const SearchSpec& spec, const std::vector<Candidate>& choice,
                            const KvLoad& load) {
  int64_t bytes = fixed_kv_bytes(spec, load);
  for (size_t site = 0; site < spec.sites.size(); ++site) {
    bytes += kv_bytes(spec.model, spec.sites[site], choice[site], load);
  }
  return bytes;
}

int64_t most_sequences(const SearchSpec& spec, const std::vector<Candidate>& choice,
                       const KvBudget& budget) {
  return largest(kMaxSequences, [&](int64_t sequences) {
    KvLoad load = budget.load;
    load.sequences = sequences;
    return assignment_kv_bytes(spec, choice, load) <= budget.bytes;
  });
}

int64_t longest_context(const SearchSpec& spec, const std::vector<Candidate>& choice,
                        const KvBudget& budget) {
  return largest(kMaxContext, [&](int64_t context) {
    KvLoad load = budget.load;
    load.context = context;
    return assignment_kv_bytes(spec, choice, load) <= budget.bytes;
  });
}

}  // namespace bitalloc
