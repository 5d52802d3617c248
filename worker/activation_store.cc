#include "worker/activation_store.h"

#include <ATen/ATen.h>

namespace bitalloc {
namespace {

// Pinned memory, so that copies need no second buffer in the driver.
at::Tensor to_host(const at::Tensor& x) {
  if (!x.defined() || x.is_cpu()) return x;
  const at::Tensor host = at::empty_like(x, x.options().device(at::kCPU).pinned_memory(true));
  host.copy_(x);
  return host;
}

at::Tensor at_place(const at::Tensor& x, Place place) {
  switch (place) {
    case Place::kDevice:
      return x;
    case Place::kHost:
      return to_host(x);
    case Place::kNowhere:
      return {};
  }
  BA_CHECK(false, "unknown place");
}

at::Tensor on_device(const at::Tensor& x, const c10::Device& device) {
  return x.defined() ? x.to(device) : x;
}

}  // namespace

Activations activations_of(const Layer& layer, const at::Tensor& hidden,
                           const TokenContext& context) {
  Activations activations{hidden, layer.project(hidden, context)};
  // q and k may be copies while v is a view of all three: then it holds as much again.
  Qkv& qkv = activations.qkv;
  if (!qkv.kv.v.is_alias_of(qkv.q)) qkv.kv.v = qkv.kv.v.clone();
  return activations;
}

at::Tensor leaving(const Layer& layer, const Activations& entering, const TokenContext& context) {
  return layer.finish(entering.hidden,
                      layer.attention.attend(entering.qkv.q, entering.qkv.kv, context));
}

ActivationStore::ActivationStore(KeepPlan keep, size_t chunks)
    : keep_(std::move(keep)), kept_(chunks, std::vector<Activations>(keep_.hidden.size())) {}

size_t ActivationStore::nearest_kept(size_t layer) const {
  while (layer > 0 && keep_.hidden[layer] == Place::kNowhere) --layer;
  return layer;
}

void ActivationStore::put(size_t chunk, size_t layer, const Activations& activations) {
  Activations& kept = kept_[chunk][layer];
  kept.hidden = at_place(activations.hidden, keep_.hidden[layer]);
  const Place place = keep_.qkv[layer];
  const Qkv& qkv = activations.qkv;
  kept.qkv = {at_place(qkv.q, place), {at_place(qkv.kv.k, place), at_place(qkv.kv.v, place)}};
}

at::Tensor ActivationStore::hidden(size_t chunk, size_t layer, const c10::Device& device) const {
  return on_device(kept_[chunk][layer].hidden, device);
}

Qkv ActivationStore::qkv(size_t chunk, size_t layer, const c10::Device& device) const {
  const Qkv& qkv = kept_[chunk][layer].qkv;
  return {on_device(qkv.q, device), {on_device(qkv.kv.k, device), on_device(qkv.kv.v, device)}};
}

Status fetch_segment(const ActivationStore& store, const Decoder& model, size_t chunk,
                     const at::Tensor& ids, const TokenContext& context,
                     const std::vector<size_t>& layers, const std::atomic<bool>& cancel,
                     Segment& segment) {
  const c10::Device device = ids.device();
  // The hidden state entering layer `at`.
  size_t at = segment.layers.empty() ? 0 : segment.layers.back();
  at::Tensor hidden = segment.layers.empty() ? at::Tensor() : segment.activations.back().hidden;
  segment = {};
  for (const size_t layer : layers) {
    const size_t nearest = store.nearest_kept(layer);
    if (nearest > at) {
      hidden = store.hidden(chunk, nearest, device);
      at = nearest;
    } else if (!hidden.defined()) {
      hidden = model.embed(ids);
    }
    for (; at < layer; ++at) {
      if (model.lanes().stopped(cancel)) return cancelled("cancelled");
      const Layer& below = model.layers[at];
      hidden = leaving(below, activations_of(below, hidden, context), context);
    }
    const Qkv kept = store.qkv(chunk, layer, device);
    segment.layers.push_back(layer);
    segment.activations.push_back(kept.q.defined()
                                      ? Activations{hidden, kept}
                                      : activations_of(model.layers[layer], hidden, context));
  }
  return {};
}

}  // namespace bitalloc
