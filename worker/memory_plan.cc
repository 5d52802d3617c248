#include "worker/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "common/bytes_text.h"

namespace bitalloc {
namespace {

// Tokens that a core works on at once: enough for its matrix products to run at full speed (from
// 256 rows on), few enough for activations to stay near the cache.
constexpr int64_t kCpuChunkTokens = 256;
constexpr int64_t kCpuTileRows = 256;
constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kDouble = sizeof(double);
// Flash attention on CPUs has blocks of scores for each thread: 0.6 MB, measured.
constexpr int64_t kAttentionBlockBytes = int64_t{1} << 20;
// A mask while it is made: int64 distances, and booleans of the steps between.
constexpr int64_t kMaskInTheMakingBytes = 20;
// An input token: int64 id and index, boolean mask.
constexpr int64_t kInputTokenBytes = 17;
// What a validation notes of a scored token, and its target.
constexpr int64_t kStatisticsBytes = 5 * kDouble;

constexpr const char* kHint =
    "give shorter sequences (--length), let a worker use more memory (--memory-limit), or share "
    "the model among devices (--tp)";

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t q_width(const NetworkShape& network) { return network.num_heads * network.head_dim; }
int64_t kv_width(const NetworkShape& network) { return network.num_kv_heads * network.head_dim; }

int64_t chunk_sequences(const NetworkShape& network, const BatchShape& batch) {
  return sequences_per_chunk(network.on_cpu, batch.length, batch.sequences);
}

bool has_masks(const NetworkShape& network, const BatchShape& batch) {
  return batch.irregular || (network.window > 0 && network.window < batch.tokens);
}

// Float32 scores of a tile of mixed attention: in a core's cache; on GPUs enough for its kernels to
// take longer than their launch.
constexpr int64_t kCpuMixedTileBytes = int64_t{1} << 20;
constexpr int64_t kGpuMixedTileBytes = int64_t{64} << 20;
// Scores against stored and exact keys, mixed ones, all of them in one; then no more: weights, and
// those of mixed values twice. A tile's worth of booleans.
constexpr int64_t kMixedTilesAtOnce = 5;

int64_t mixed_row_bytes(const MixedShape& shape) {
  return shape.tokens * shape.queries_per_kv_head * kFloat;
}

MixedShape mixed_shape(const NetworkShape& network, int64_t tokens) {
  return {tokens, network.num_kv_heads, network.num_heads / network.num_kv_heads, network.head_dim,
          network.on_cpu};
}

// Masks, and on GPUs the scores of attention kernels that keep them: float32 and masked inputs.
int64_t attention_extra_bytes(const NetworkShape& network, const BatchShape& batch,
                              int64_t sequences) {
  const int64_t squared = batch.tokens * batch.tokens;
  const bool masked = has_masks(network, batch);
  const int64_t mixed = batch.mixed ? mixed_attention_bytes(mixed_shape(network, batch.tokens)) : 0;
  if (!network.on_cpu && (masked || network.element_bytes == kFloat)) {
    return mixed + 3 * sequences * network.num_heads * squared * kFloat;
  }
  const int64_t masks = !masked ? 0 : (batch.irregular ? sequences : 1) * squared;
  return mixed + kAttentionBlockBytes + masks * (1 + network.element_bytes);
}

// Ids, masks, rotations of `sequences` in `chunks` pieces.
int64_t input_bytes(const NetworkShape& network, const BatchShape& batch, int64_t sequences,
                    int64_t chunks) {
  const int64_t squared = batch.tokens * batch.tokens;
  const int64_t rotations = 2 * batch.tokens * network.head_dim * network.element_bytes;
  const int64_t plain = kInputTokenBytes * sequences * batch.tokens + chunks * rotations;
  if (!has_masks(network, batch)) return plain;
  const int64_t kinds = (batch.irregular ? 1 : 0) + (network.window > 0 ? 1 : 0);
  return plain + kinds * (batch.irregular ? sequences : chunks) * squared +
         kMaskInTheMakingBytes * squared;
}

// The parts that a unit is cut into.
struct Parts {
  int64_t sequences = 0;
  int64_t candidates = 0;
  int64_t sites = 0;
};

// What one set of parts takes at once, kept activations apart.
class Need {
 public:
  Need(const NetworkShape& network, const BatchShape& batch, const Parts& parts)
      : network_(network),
        batch_(batch),
        parts_(parts),
        chunk_(std::min(chunk_sequences(network, batch), parts.sequences)),
        chunks_(divide_up(parts.sequences, chunk_)),
        rows_(std::min(batch.rows, parts.sequences * batch.tokens)) {}

  int64_t tokens() const { return parts_.sequences * batch_.tokens; }

  // The widest moment of all. segment_sites: sites whose activations have to be fetched.
  int64_t peak(int64_t segment_sites) const {
    const int64_t base =
        network_.weight_bytes + normed() + input_bytes(network_, batch_, parts_.sequences, chunks_);
    const int64_t moments[] = {normed() + pass(), segment(segment_sites) + pass(),
                               segment(segment_sites) + run(), segment(segment_sites) + output()};
    return base + *std::max_element(std::begin(moments), std::end(moments));
  }

 private:
  // Hidden states of scored tokens after the final norm.
  int64_t normed() const { return rows_ * network_.hidden_size * network_.element_bytes; }
  int64_t at_once(int64_t pieces) const { return std::min(network_.threads, pieces); }
  bool has_trials() const { return parts_.sites * parts_.candidates > 0; }
  int64_t trials() const {
    return normed() * (has_trials() ? parts_.sites * parts_.candidates : 1);
  }

  int64_t pass() const { return at_once(chunks_) * layer_bytes(network_, batch_, chunk_); }

  // Fetched activations, and the hidden state from which the next part goes on.
  int64_t segment(int64_t sites) const {
    return sites * (hidden_bytes(network_, tokens()) + qkv_bytes(network_, tokens())) +
           hidden_bytes(network_, tokens());
  }

  int64_t run() const {
    const int64_t quantized = std::max<int64_t>(1, parts_.candidates) * 2 * kv_width(network_) *
                              chunk_ * batch_.tokens * network_.element_bytes;
    const int64_t pieces = std::max<int64_t>(1, parts_.sites) * chunks_;
    return trials() +
           at_once(pieces) * (layer_bytes(network_, batch_, stacked_sequences()) + quantized);
  }

  // Sequences in one stack of trials; on CPUs short ones count as parts of one of batch.tokens.
  int64_t stacked_sequences() const {
    if (!has_trials()) return chunk_;
    const int64_t tokens = chunk_ * (network_.on_cpu ? batch_.shortest : batch_.tokens);
    const int64_t all = chunk_ * std::min(parts_.candidates, trials_per_stack(network_, tokens));
    if (!network_.on_cpu) return all;
    return std::max(chunk_, std::min(all, divide_up(kCpuChunkTokens, batch_.tokens)));
  }

  int64_t output() const {
    const int64_t rows = std::min(tile_rows(network_), chunk_ * batch_.tokens);
    const int64_t tiles = chunks_ * divide_up(chunk_ * batch_.tokens, rows);
    const int64_t logits = 2 * rows * network_.vocab_size * kFloat;
    const int64_t inputs = rows * (network_.hidden_size * kFloat + 3 * kDouble);
    const int64_t noted = has_trials() ? parts_.sites * parts_.candidates * rows_ * kDouble
                                       : rows_ * kStatisticsBytes;
    return trials() + noted + at_once(tiles) * (logits + inputs);
  }

  const NetworkShape& network_;
  const BatchShape& batch_;
  const Parts parts_;
  const int64_t chunk_;   // sequences
  const int64_t chunks_;  // in a part
  const int64_t rows_;    // scored tokens of a part, at most
};

// whole, then about a half, a quarter, … in multiples of `grain`, down to one grain.
std::vector<int64_t> halves(int64_t whole, int64_t grain) {
  std::vector<int64_t> sizes = {whole};
  if (whole <= grain) return sizes;
  for (int64_t grains = divide_up(whole, grain) / 2; grains > 0; grains /= 2) {
    sizes.push_back(grains * grain);
  }
  return sizes;
}

KeepPlan keep_nothing(int64_t layers) {
  const std::vector<Place> nowhere(static_cast<size_t>(layers), Place::kNowhere);
  return {nowhere, nowhere, 0, 0};
}

// The plan of these parts, if they fit.
std::optional<UnitPlan> plan_parts(const NetworkShape& network, const BatchShape& batch,
                                   const Parts& parts, const MemoryBudget& budget) {
  const Need need(network, batch, parts);
  const int64_t hidden = hidden_bytes(network, need.tokens());
  const int64_t qkv = qkv_bytes(network, need.tokens());
  const auto plan_with = [&](const KeepPlan& keep, int64_t segment_sites) {
    const int64_t peak = need.peak(segment_sites) + keep.device_bytes;
    return UnitPlan{parts.sequences, parts.candidates, parts.sites, keep, peak, 0};
  };
  if (parts.sites == 0) {
    const UnitPlan plan = plan_with(keep_nothing(network.layers), 0);
    return plan.peak_bytes <= budget.device_bytes ? std::optional(plan) : std::nullopt;
  }
  const KeepPlan all =
      plan_activations(network.layers, hidden, qkv, budget.activation_bytes, /*host_budget=*/0);
  const UnitPlan simple = plan_with(all, 0);
  if (all.all_on_device() && simple.peak_bytes <= budget.device_bytes) return simple;

  const int64_t left = budget.device_bytes - need.peak(parts.sites);
  if (left < 0) return std::nullopt;
  return plan_with(
      plan_activations(network.layers, hidden, qkv, std::min(budget.activation_bytes, left),
                       budget.host_activation_bytes),
      parts.sites);
}

Error does_not_fit(const NetworkShape& network, const BatchShape& batch, const Parts& smallest,
                   int64_t needed_bytes, int64_t there_bytes) {
  const std::string what =
      smallest.sites == 0
          ? fmt::format("{} sequence(s) of {} tokens need", smallest.sequences, batch.tokens)
          : fmt::format(
                "{} candidate(s) of one layer on {} sequence(s) of {} "
                "tokens need",
                smallest.candidates, smallest.sequences, batch.tokens);
  return resource_exhausted(
      fmt::format("{} {} of memory, {} of weights included; this worker may use {}", what,
                  bytes_text(needed_bytes), bytes_text(network.weight_bytes),
                  bytes_text(there_bytes)),
      "memory", kHint);
}

}  // namespace

BatchShape batch_shape(const TokenSet& batch) {
  BatchShape shape{.sequences = batch.sequences, .length = batch.length, .tokens = 1};
  shape.shortest = batch.length;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const auto mask = batch.mask.begin() + s * batch.length;
    int64_t real = 0;
    int64_t used = 1;
    for (int64_t i = 0; i < batch.length; ++i) {
      if (mask[i] == 0) continue;
      ++real;
      used = i + 1;
    }
    shape.rows += real;
    shape.tokens = std::max(shape.tokens, used);
    shape.shortest = std::min(shape.shortest, used);
    if (real != 0 && real != used) shape.irregular = true;
  }
  return shape;
}

int64_t sequences_per_chunk(bool on_cpu, int64_t length, int64_t sequences) {
  return on_cpu ? std::max<int64_t>(1, kCpuChunkTokens / length) : sequences;
}

int64_t trials_per_stack(const NetworkShape& network, int64_t chunk_tokens) {
  if (network.on_cpu) {
    const auto most = static_cast<uint64_t>(std::max<int64_t>(1, kCpuChunkTokens / chunk_tokens));
    return static_cast<int64_t>(std::bit_floor(most));
  }
  // gate_up is the widest activation; its product and the residual live beside it.
  const int64_t widest = 4 * network.intermediate_size * network.element_bytes;
  return std::max<int64_t>(1, network.stack_bytes / (chunk_tokens * widest));
}

int64_t tile_rows(const NetworkShape& network) {
  const int64_t rows = std::max<int64_t>(1, network.tile_bytes / (network.vocab_size * kFloat));
  return network.on_cpu ? std::min(rows, kCpuTileRows) : rows;
}

int64_t hidden_bytes(const NetworkShape& network, int64_t tokens) {
  return tokens * network.hidden_size * network.element_bytes;
}

int64_t qkv_bytes(const NetworkShape& network, int64_t tokens) {
  return tokens * (q_width(network) + 2 * kv_width(network)) * network.element_bytes;
}

MixedTile mixed_tile(const MixedShape& shape) {
  const int64_t row = mixed_row_bytes(shape);
  const int64_t most = shape.on_cpu ? kCpuMixedTileBytes : kGpuMixedTileBytes;
  MixedTile tile;
  tile.queries = std::clamp<int64_t>(most / row, 1, shape.tokens);
  if (!shape.on_cpu) {
    tile.kv_heads = std::clamp<int64_t>(most / (row * tile.queries), 1, shape.kv_heads);
  }
  return tile;
}

int64_t mixed_attention_bytes(const MixedShape& shape) {
  const MixedTile tile = mixed_tile(shape);
  const int64_t scores = mixed_row_bytes(shape) * tile.queries;
  // Queries, and two sums; a side's keys or values, and in float32 those that are looked at.
  const int64_t rows = 3 * shape.queries_per_kv_head * tile.queries + 2 * shape.tokens;
  return tile.kv_heads * (kMixedTilesAtOnce * scores + rows * shape.head_dim * kFloat);
}

int64_t layer_bytes(const NetworkShape& network, const BatchShape& batch, int64_t sequences) {
  const int64_t tokens = sequences * batch.tokens;
  const int64_t e = network.element_bytes;
  const int64_t hidden = network.hidden_size;
  const int64_t q = q_width(network);
  // The projection; without fused loops q and k are rotated into tensors of their own.
  const int64_t qkv = q + 2 * kv_width(network) + (network.fused ? 0 : q + kv_width(network));
  const int64_t entered = e * (hidden + qkv + 2 * q);
  const int64_t wide_norm = network.fused ? 0 : 3 * kFloat;  // float32 steps of RMSNorm
  const int64_t attention = entered + 4 * q * (network.fused ? 0 : kFloat);
  const int64_t norms = entered + e * 2 * hidden + wide_norm * hidden;
  const int64_t mlp = entered + e * ((network.fused ? 3 : 5) * hidden +
                                     (network.fused ? 3 : 4) * network.intermediate_size);
  return std::max(tokens * attention + attention_extra_bytes(network, batch, sequences),
                  tokens * std::max(norms, mlp));
}

bool KeepPlan::all_on_device() const {
  const auto on_device = [](Place place) { return place == Place::kDevice; };
  return std::all_of(hidden.begin() + 1, hidden.end(), on_device) &&
         std::all_of(qkv.begin(), qkv.end(), on_device);
}

KeepPlan plan_activations(int64_t layers, int64_t hidden_bytes, int64_t qkv_bytes,
                          int64_t device_budget, int64_t host_budget) {
  KeepPlan plan = keep_nothing(layers);
  const auto place = [&](Place& where, int64_t bytes) {
    if (plan.device_bytes + bytes <= device_budget) {
      where = Place::kDevice;
      plan.device_bytes += bytes;
    } else if (plan.host_bytes + bytes <= host_budget) {
      where = Place::kHost;
      plan.host_bytes += bytes;
    }
  };
  const int64_t room = device_budget / hidden_bytes + host_budget / hidden_bytes;
  // The smallest n for which layers n, 2n, … below `layers` are at most `room`.
  const int64_t step = (layers - 1) / (room + 1) + 1;
  for (int64_t i = step; i < layers; i += step) {
    place(plan.hidden[static_cast<size_t>(i)], hidden_bytes);
  }
  if (step > 1) return plan;
  for (Place& where : plan.qkv) place(where, qkv_bytes);
  return plan;
}

Result<UnitPlan> plan_unit(const NetworkShape& network, const BatchShape& batch,
                           const WorkShape& work, const MemoryBudget& budget) {
  const int64_t sequence_grain =
      std::min(batch.sequences, network.on_cpu ? chunk_sequences(network, batch) : int64_t{1});
  const int64_t candidate_grain =
      network.on_cpu ? std::min(work.candidates, trials_per_stack(network, batch.shortest))
                     : std::min<int64_t>(work.candidates, 1);
  const Parts smallest = {sequence_grain, candidate_grain, std::min<int64_t>(work.sites, 1)};
  const int64_t needed = Need(network, batch, smallest).peak(smallest.sites);
  for (const int64_t sequences : halves(batch.sequences, sequence_grain)) {
    for (const int64_t candidates : halves(work.candidates, candidate_grain)) {
      for (const int64_t sites : halves(work.sites, smallest.sites)) {
        auto plan = plan_parts(network, batch, {sequences, candidates, sites}, budget);
        if (!plan) continue;
        plan->smallest_bytes = needed;
        return *std::move(plan);
      }
    }
  }
  return does_not_fit(network, batch, smallest, needed, budget.device_bytes);
}

MemoryBudget make_budget(const MemoryOptions& options, bool on_cpu, int64_t available_bytes,
                         int64_t available_host_bytes) {
  const int64_t sharers = std::max<int64_t>(1, options.machine_workers);
  MemoryBudget budget;
  budget.device_bytes =
      options.limit_bytes.value_or(available_bytes / 10 * 9 / (on_cpu ? sharers : 1));
  budget.activation_bytes =
      options.activation_bytes.value_or(budget.device_bytes / (on_cpu ? 4 : 2));
  if (!on_cpu) {
    budget.host_activation_bytes =
        options.host_activation_bytes.value_or(available_host_bytes / 4 / sharers);
  }
  return budget;
}

Status check_weights_fit(int64_t needed_bytes, const MemoryBudget& budget) {
  if (needed_bytes <= budget.device_bytes) return {};
  return resource_exhausted(
      fmt::format("the model's weights need {} of memory while they are loaded; this worker may "
                  "use {}",
                  bytes_text(needed_bytes), bytes_text(budget.device_bytes)),
      "memory",
      "run it on a worker with more memory (--memory-limit says how much it may use), share the "
      "model among devices (--tp), or score in bfloat16 (--dtype)");
}

}  // namespace bitalloc
