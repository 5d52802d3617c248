// The reference pass of one batch: what trials start from, and what they are compared with.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/tokens.h"
#include "worker/activation_store.h"
#include "worker/models/decoder.h"

namespace bitalloc {

// Some sequences of a batch, which run through the network together.
struct Chunk {
  int64_t begin = 0;      // first sequence
  int64_t sequences = 0;  // how many
  int64_t tokens = 0;     // up to the last real token of any of them: what follows is padding
  at::Tensor ids;         // int64 [sequences, tokens]
  at::Tensor mask;        // bool [sequences, tokens]
  at::Tensor scored;      // int64 [rows]: real tokens, as indices into sequences × tokens
  int64_t first_row = 0;  // of its scored tokens among those of the batch
  TokenContext context;
};

// How a batch is cut. Fixed by shapes and device alone, so that a batch always runs the same way.
std::vector<Chunk> make_chunks(const Decoder& model, const TokenSet& batch);

struct Reference {
  std::string key;
  std::vector<Chunk> chunks;
  int64_t whole_chunks = 0;  // of the batch that this one is a part of (see run_items)
  ActivationStore store;
  at::Tensor normed;                  // [rows, hidden_size] after the final norm, scored tokens
  std::vector<int64_t> row_sequence;  // [rows]
  std::vector<int64_t> tokens;        // [sequences] scored tokens
};

// What a pass is to be: its name, what it keeps, and the batch that it is a part of.
struct ReferenceRequest {
  std::string key;
  KeepPlan keep;
  int64_t whole_sequences = 0;
};

Result<Reference> run_reference(const Decoder& model, const TokenSet& batch,
                                const ReferenceRequest& request, const std::atomic<bool>& cancel);

// fetch_segment for every chunk. segments: [chunks].
Status fetch_segments(const Decoder& model, const Reference& reference,
                      const std::vector<size_t>& layers, const std::atomic<bool>& cancel,
                      std::vector<Segment>& segments);

// Hidden states [sequences, tokens, hidden_size] leaving the last layer -> normed [rows,
// hidden_size] of the chunk's scored tokens.
at::Tensor scored_rows(const Decoder& model, const Chunk& chunk, const at::Tensor& hidden);

}  // namespace bitalloc
