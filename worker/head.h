// The output layer and what is made of its logits, in tiles of tokens: logits exist for one tile of
// the reference and one of trials at a time, so memory does not grow with vocabulary × context.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "worker/models/decoder.h"

namespace bitalloc {

// Rows that go through the output layer together. Cut within chunks, not across, so that the rows
// of a part of a batch are cut as those of the whole.
struct RowTiles {
  struct Tile {
    int64_t first = 0;
    int64_t rows = 0;
  };
  std::vector<Tile> tiles;
  int64_t most_rows = 0;  // of any tile
  int64_t whole = 0;      // see run_items
};
// chunk_rows: scored rows of each chunk. most_rows: of a tile. Tiles of a chunk are equally high.
RowTiles cut_rows(const std::vector<int64_t>& chunk_rows, int64_t most_rows, int64_t whole_chunks);

// KL(reference ‖ trial) in nats of every scored token. reference: [rows, hidden_size]; trials:
// [trials, rows, hidden_size], both after the final norm. Returns float64 [trials, rows] on the
// CPU; not finite where logits are not.
Result<at::Tensor> tiled_kl(const Decoder& model, const at::Tensor& reference,
                            const at::Tensor& trials, const RowTiles& tiles,
                            const std::atomic<bool>& cancel);

// What a validation wants to know of every scored token, [rows] each, on the CPU.
struct TokenStatistics {
  at::Tensor kl;             // float64, nats
  at::Tensor nll;            // float64, −log q(target), nats; 0 where there is no target
  at::Tensor reference_nll;  // float64
  at::Tensor top1_agrees;    // bool: the most likely token is the reference's
};

// trial: [rows, hidden_size]. targets: int64 [rows] on the CPU, the next token, −1 for none.
Result<TokenStatistics> tiled_statistics(const Decoder& model, const at::Tensor& reference,
                                         const at::Tensor& trial, const at::Tensor& targets,
                                         const RowTiles& tiles, const std::atomic<bool>& cancel);

}  // namespace bitalloc
