// How much memory a unit takes, what is kept of the reference pass, and how a unit is cut when it
// does not fit. Arithmetic over shapes, done before a pass; nothing is discovered in it. No
// LibTorch.
//
// All sizes are bytes on the compute device unless they say otherwise. Formulas are upper bounds:
// worker/memory_test.cc holds them against what LibTorch's allocator hands out.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/tokens.h"

namespace bitalloc {

// What memory depends on of a loaded network; a tensor-parallel rank's own share of it.
struct NetworkShape {
  int64_t layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of gate, and of up
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t window = 0;         // sliding attention of some layer; 0: none
  int64_t element_bytes = 4;  // of the compute type
  bool on_cpu = true;
  bool fused = true;         // cpu_ops.h applies: float32 on a CPU
  int64_t threads = 1;       // pieces of work at once; 1 on GPUs
  int64_t tile_bytes = 0;    // one float32 tile of logits
  int64_t stack_bytes = 0;   // GPUs: widest activation of one stack of trials
  int64_t weight_bytes = 0;  // what stays of them on the device
};

struct BatchShape {
  int64_t sequences = 0;
  int64_t length = 0;    // padding included
  int64_t tokens = 0;    // up to the last real one of any sequence, at least 1
  int64_t shortest = 0;  // the same of the shortest sequence
  int64_t rows = 0;      // scored tokens
  // Some sequence is not just padded on the right: attention needs masks of tokens².
  bool irregular = false;
  bool mixed = false;  // queries see stored and exact tokens (mixed_attention.h)
};
BatchShape batch_shape(const TokenSet& batch);

// Sequences that run through the network together: on CPUs about 256 tokens, enough for a core's
// products to run at full speed; on GPUs all there are.
int64_t sequences_per_chunk(bool on_cpu, int64_t length, int64_t sequences);
// Trials stacked into one pass of a chunk of so many tokens. A power of two on CPUs, so that
// candidates cut at a multiple are stacked as in the whole.
int64_t trials_per_stack(const NetworkShape& network, int64_t chunk_tokens);
// A call of mixed_attention on one sequence.
struct MixedShape {
  int64_t tokens = 0;
  int64_t kv_heads = 0;
  int64_t queries_per_kv_head = 0;  // num_heads / num_kv_heads
  int64_t head_dim = 0;
  bool on_cpu = true;
};
// What it works on at once.
struct MixedTile {
  int64_t kv_heads = 1;
  int64_t queries = 1;
};
MixedTile mixed_tile(const MixedShape& shape);
// The most bytes that it takes beside its arguments and its result.
int64_t mixed_attention_bytes(const MixedShape& shape);
// Rows of the largest tile of logits.
int64_t tile_rows(const NetworkShape& network);

// One layer's hidden state, and its q, k and v, of so many tokens.
int64_t hidden_bytes(const NetworkShape& network, int64_t tokens);
int64_t qkv_bytes(const NetworkShape& network, int64_t tokens);
// Everything that one layer holds at its widest point, its input, q, k, v and output included, over
// `sequences` of `tokens` each.
int64_t layer_bytes(const NetworkShape& network, const BatchShape& batch, int64_t sequences);

enum class Place { kDevice, kHost, kNowhere };

// Where each layer's activations stay after the reference pass.
struct KeepPlan {
  std::vector<Place> hidden;  // [layers] entering the layer
  std::vector<Place> qkv;     // [layers]
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;

  bool operator==(const KeepPlan&) const = default;
  bool all_on_device() const;
};

// Keeps as much as fits, first on the device, then on the host. Hidden states come before q, k and
// v, which one projection makes out of them. When not all hidden states fit, every n-th layer's is
// kept, n as small as possible; layer 0's is the embedding and is never kept. What is not kept is
// computed again from the nearest kept layer below.
KeepPlan plan_activations(int64_t layers, int64_t hidden_bytes, int64_t qkv_bytes,
                          int64_t device_budget, int64_t host_budget);

// What the operator says about memory; nothing: a share of what there is.
struct MemoryOptions {
  std::optional<int64_t> limit_bytes = {};            // of the device, weights included
  std::optional<int64_t> activation_bytes = {};       // of those, for kept activations
  std::optional<int64_t> host_activation_bytes = {};  // pinned; GPUs only
  int64_t machine_workers = 1;                        // that share the machine's memory
};

// What a worker may use.
struct MemoryBudget {
  int64_t device_bytes = 0;      // weights included
  int64_t activation_bytes = 0;  // of those, for kept activations
  int64_t host_activation_bytes = 0;
};

// Work of one call on a batch: `sites` × `candidates` trials. None: passes that keep nothing
// (validation, calibration).
struct WorkShape {
  int64_t sites = 0;
  int64_t candidates = 0;
  bool mixed = false;  // see BatchShape
};

// How a unit is run: so many sequences, candidates and sites at once.
struct UnitPlan {
  int64_t sequences = 0;
  int64_t candidates = 0;
  int64_t sites = 0;
  KeepPlan keep;
  int64_t peak_bytes = 0;      // of the device, weights included
  int64_t smallest_bytes = 0;  // the same of the smallest parts: less never does

  bool is_smallest() const { return peak_bytes <= smallest_bytes; }
};

// Cuts a unit until it fits: fewer sites at once, then fewer candidates, then fewer sequences.
// On CPUs parts are cut where the whole would be cut as well, so that sums keep every bit.
// Errors: kResourceExhausted when the smallest parts do not fit, with the bytes needed and there.
Result<UnitPlan> plan_unit(const NetworkShape& network, const BatchShape& batch,
                           const WorkShape& work, const MemoryBudget& budget);

// `available` on the device and on the host. Not said: 9/10 of what is available on the device,
// half of that (a quarter on CPUs) for kept activations, a quarter of the host's memory for pinned
// ones; of host memory this worker's share. CPUs have no second tier.
MemoryBudget make_budget(const MemoryOptions& options, bool on_cpu, int64_t available_bytes,
                         int64_t available_host_bytes);

// The error for weights that do not fit: `needed` while loading.
Status check_weights_fit(int64_t needed_bytes, const MemoryBudget& budget);

}  // namespace bitalloc
