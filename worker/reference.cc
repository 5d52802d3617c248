#include "worker/reference.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "worker/parallel.h"

namespace bitalloc {
namespace {

// Tokens up to the last real one of any sequence; at least 1.
int64_t used_tokens(const TokenSet& part) {
  int64_t used = 1;
  for (size_t i = 0; i < part.mask.size(); ++i) {
    if (part.mask[i] != 0) used = std::max(used, static_cast<int64_t>(i) % part.length + 1);
  }
  return used;
}

Chunk make_chunk(const Decoder& model, const TokenSet& batch, int64_t begin, int64_t end) {
  const TokenSet part = slice(batch, begin, end);
  Chunk chunk;
  chunk.begin = begin;
  chunk.sequences = part.sequences;
  chunk.tokens = used_tokens(part);
  const std::vector<int64_t> sizes = {part.sequences, part.length};
  const at::Device device = model.embedding.device();
  const auto to_device = [&](const at::Tensor& all) {
    return all.view(sizes).narrow(1, 0, chunk.tokens).contiguous().to(device);
  };
  chunk.ids =
      to_device(at::tensor(std::vector<int64_t>(part.input_ids.begin(), part.input_ids.end())));
  chunk.mask = to_device(at::tensor(std::vector<int64_t>(part.mask.begin(), part.mask.end())) != 0);
  chunk.scored = chunk.mask.flatten().nonzero().flatten();
  chunk.context = model.make_token_context(chunk.mask);
  return chunk;
}

}  // namespace

std::vector<Chunk> make_chunks(const Decoder& model, const TokenSet& batch) {
  const int64_t step = sequences_per_chunk(model.embedding.is_cpu(), batch.length, batch.sequences);
  std::vector<Chunk> chunks;
  int64_t rows = 0;
  for (int64_t begin = 0; begin < batch.sequences; begin += step) {
    chunks.push_back(make_chunk(model, batch, begin, std::min(begin + step, batch.sequences)));
    chunks.back().first_row = rows;
    rows += chunks.back().scored.size(0);
  }
  return chunks;
}

at::Tensor scored_rows(const Decoder& model, const Chunk& chunk, const at::Tensor& hidden) {
  return model.final_norm(hidden.flatten(0, 1).index_select(0, chunk.scored));
}

Result<Reference> run_reference(const Decoder& model, const TokenSet& batch,
                                const ReferenceRequest& request, const std::atomic<bool>& cancel) {
  const c10::InferenceMode guard;
  Reference reference;
  reference.key = request.key;
  reference.chunks = make_chunks(model, batch);
  const int64_t step =
      sequences_per_chunk(model.embedding.is_cpu(), batch.length, request.whole_sequences);
  reference.whole_chunks = (request.whole_sequences + step - 1) / step;
  reference.store = ActivationStore(request.keep, reference.chunks.size());
  std::vector<at::Tensor> normed(reference.chunks.size());
  const auto run_chunk = [&](int64_t item, int64_t /*slot*/) -> Status {
    const auto at = static_cast<size_t>(item);
    const Chunk& chunk = reference.chunks[at];
    at::Tensor hidden = model.embed(chunk.ids);
    for (size_t i = 0; i < model.layers.size(); ++i) {
      if (model.lanes().stopped(cancel)) return cancelled("cancelled");
      const Activations entering = activations_of(model.layers[i], hidden, chunk.context);
      reference.store.put(at, i, entering);
      hidden = leaving(model.layers[i], entering, chunk.context);
    }
    normed[at] = scored_rows(model, chunk, hidden);
    return {};
  };
  BA_RETURN_IF_ERROR(run_items(model.lanes(), std::ssize(reference.chunks), cancel, run_chunk,
                               reference.whole_chunks));
  reference.normed = at::cat(normed);
  reference.tokens.assign(static_cast<size_t>(batch.sequences), 0);
  for (size_t i = 0; i < batch.mask.size(); ++i) {
    if (batch.mask[i] == 0) continue;
    const int64_t sequence = static_cast<int64_t>(i) / batch.length;
    reference.row_sequence.push_back(sequence);
    ++reference.tokens[static_cast<size_t>(sequence)];
  }
  return reference;
}

Status fetch_segments(const Decoder& model, const Reference& reference,
                      const std::vector<size_t>& layers, const std::atomic<bool>& cancel,
                      std::vector<Segment>& segments) {
  const auto fetch = [&](int64_t item, int64_t /*slot*/) {
    const auto at = static_cast<size_t>(item);
    const Chunk& chunk = reference.chunks[at];
    return fetch_segment(reference.store, model, at, chunk.ids, chunk.context, layers, cancel,
                         segments[at]);
  };
  return run_items(model.lanes(), std::ssize(reference.chunks), cancel, fetch,
                   reference.whole_chunks);
}

}  // namespace bitalloc
