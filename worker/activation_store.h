// What stays of a reference pass: the hidden state entering each layer, and the layer's q, k and v,
// where the plan (memory_plan.h) says. What was dropped is computed again, by the same operators on
// the same shapes and with the same threads: to the bit what the pass computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "worker/memory_plan.h"
#include "worker/models/decoder.h"

namespace bitalloc {

// What the trials of one layer start from, on one chunk.
struct Activations {
  at::Tensor hidden;  // [sequences, tokens, hidden_size] entering the layer
  Qkv qkv;
};

// What a layer computes before attention. Its tensors hold no memory beside their own.
Activations activations_of(const Layer& layer, const at::Tensor& hidden,
                           const TokenContext& context);
// The hidden state that leaves the layer at the reference.
at::Tensor leaving(const Layer& layer, const Activations& entering, const TokenContext& context);

// Thread rule: different chunks from different threads, the same one from one at a time.
class ActivationStore {
 public:
  ActivationStore() = default;
  ActivationStore(KeepPlan keep, size_t chunks);

  const KeepPlan& keep() const { return keep_; }
  // The highest layer up to `layer` whose hidden state is kept; 0 (the embedding) when none is.
  size_t nearest_kept(size_t layer) const;
  // Keeps what the plan says of a layer's activations. Throws as LibTorch does.
  void put(size_t chunk, size_t layer, const Activations& activations);
  // What is kept, on `device`: undefined tensors where nothing is.
  at::Tensor hidden(size_t chunk, size_t layer, const c10::Device& device) const;
  Qkv qkv(size_t chunk, size_t layer, const c10::Device& device) const;

 private:
  KeepPlan keep_;
  std::vector<std::vector<Activations>> kept_;  // [chunks][layers]
};

// Activations of a few layers on one chunk, fetched from a store in growing order of layers.
struct Segment {
  std::vector<size_t> layers;
  std::vector<Activations> activations;  // [layers]
};

// Replaces `segment` (of lower layers, or empty) by that of `layers`, in growing order. Goes on
// from the nearest kept layer below, or from where `segment` ended if that is nearer: a sweep over
// all sites of a unit runs the network once at most.
Status fetch_segment(const ActivationStore& store, const Decoder& model, size_t chunk,
                     const at::Tensor& ids, const TokenContext& context,
                     const std::vector<size_t>& layers, const std::atomic<bool>& cancel,
                     Segment& segment);

}  // namespace bitalloc
