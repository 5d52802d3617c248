#include "worker/reference.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "worker/parallel.h"

namespace bitalloc {
namespace {

// Tokens that a core works on at once: enough for its matrix products to run at full speed (from
// 256 rows on), few enough for activations to stay near the cache.
constexpr int64_t kCpuChunkTokens = 256;

int64_t sequences_per_chunk(const Decoder& model, const TokenSet& batch) {
  if (!model.embedding.is_cpu()) return batch.sequences;
  return std::max<int64_t>(1, kCpuChunkTokens / batch.length);
}

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
  const int64_t step = sequences_per_chunk(model, batch);
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

Result<Reference> run_reference(const Decoder& model, const TokenSet& batch, const std::string& key,
                                const std::atomic<bool>& cancel) {
  const c10::InferenceMode guard;
  Reference reference;
  reference.key = key;
  reference.chunks = make_chunks(model, batch);
  reference.hidden.resize(reference.chunks.size());
  reference.qkv.resize(reference.chunks.size());
  std::vector<at::Tensor> normed(reference.chunks.size());
  BA_RETURN_IF_ERROR(run_items(
      model.lanes(), static_cast<int64_t>(reference.chunks.size()), cancel,
      [&](int64_t item, int64_t /*slot*/) -> Status {
        const auto at = static_cast<size_t>(item);
        const Chunk& chunk = reference.chunks[at];
        at::Tensor hidden = model.embed(chunk.ids);
        for (const Layer& layer : model.layers) {
          if (model.lanes().stopped(cancel)) return cancelled("cancelled");
          const Qkv qkv = layer.project(hidden, chunk.context);
          reference.hidden[at].push_back(hidden);
          reference.qkv[at].push_back(qkv);
          hidden = layer.finish(hidden, layer.attention.attend(qkv.q, qkv.kv, chunk.context));
        }
        normed[at] = scored_rows(model, chunk, hidden);
        return {};
      }));
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

}  // namespace bitalloc
