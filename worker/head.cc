#include "worker/head.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/torch_ops.h"
#include "worker/parallel.h"

namespace bitalloc {
namespace {

// One thread's buffers: as long as they stay, the kernel need not hand out fresh pages for every
// product (which costs more than the product).
struct Buffers {
  at::Tensor reference;
  at::Tensor trials;
};

at::Tensor rows_of(at::Tensor& buffer, int64_t rows, int64_t capacity, const Decoder& model) {
  if (!buffer.defined()) {
    buffer = at::empty({capacity, model.output.out_features()},
                       model.embedding.options().dtype(at::kFloat));
  }
  return buffer.narrow(0, 0, rows);
}

}  // namespace

RowTiles cut_rows(const std::vector<int64_t>& chunk_rows, int64_t most_rows, int64_t whole_chunks) {
  RowTiles cut;
  int64_t first = 0;
  for (const int64_t rows : chunk_rows) {
    const int64_t pieces = (rows + most_rows - 1) / most_rows;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t begin = rows * piece / pieces;
      const int64_t size = rows * (piece + 1) / pieces - begin;
      cut.tiles.push_back({first + begin, size});
      cut.most_rows = std::max(cut.most_rows, size);
    }
    first += rows;
  }
  cut.whole = std::max<int64_t>(std::ssize(cut.tiles), whole_chunks);
  return cut;
}

Result<at::Tensor> tiled_kl(const Decoder& model, const at::Tensor& reference,
                            const at::Tensor& trials, const RowTiles& tiles,
                            const std::atomic<bool>& cancel) {
  const c10::InferenceMode guard;
  const at::Device device = reference.device();
  const int64_t count = trials.size(0);
  const at::Tensor kl =
      at::empty({count, reference.size(0)}, reference.options().dtype(at::kDouble));
  std::vector<Buffers> buffers(static_cast<size_t>(slots_for(device)));
  const auto run_tile = [&](int64_t item, int64_t slot) -> Status {
    Buffers& mine = buffers[static_cast<size_t>(slot)];
    const auto [first, rows] = tiles.tiles[static_cast<size_t>(item)];
    const at::Tensor a = model.logits(reference.narrow(0, first, rows),
                                      rows_of(mine.reference, rows, tiles.most_rows, model));
    const at::Tensor normalizer = log_sum_exp_rows(a);
    for (int64_t t = 0; t < count; ++t) {
      if (cancel) return cancelled("cancelled");
      const at::Tensor b = model.logits(trials[t].narrow(0, first, rows),
                                        rows_of(mine.trials, rows, tiles.most_rows, model));
      kl[t].narrow(0, first, rows).copy_(kl_rows(a, b, normalizer));
    }
    return {};
  };
  BA_RETURN_IF_ERROR(run_items(device, std::ssize(tiles.tiles), cancel, run_tile, tiles.whole));
  return kl.cpu();
}

Result<TokenStatistics> tiled_statistics(const Decoder& model, const at::Tensor& reference,
                                         const at::Tensor& trial, const at::Tensor& targets,
                                         const RowTiles& tiles, const std::atomic<bool>& cancel) {
  const c10::InferenceMode guard;
  const at::Device device = reference.device();
  const int64_t rows = reference.size(0);
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  TokenStatistics all{at::empty({rows}, wide), at::empty({rows}, wide), at::empty({rows}, wide),
                      at::empty({rows}, at::TensorOptions().dtype(at::kBool))};
  std::vector<Buffers> buffers(static_cast<size_t>(slots_for(device)));
  const auto run_tile = [&](int64_t item, int64_t slot) -> Status {
    Buffers& mine = buffers[static_cast<size_t>(slot)];
    const auto [first, size] = tiles.tiles[static_cast<size_t>(item)];
    const at::Tensor a = model.logits(reference.narrow(0, first, size),
                                      rows_of(mine.reference, size, tiles.most_rows, model));
    const at::Tensor b = model.logits(trial.narrow(0, first, size),
                                      rows_of(mine.trials, size, tiles.most_rows, model));
    const at::Tensor target = targets.narrow(0, first, size).to(device);
    const at::Tensor none = target < 0;
    const auto nll = [&](const at::Tensor& logits, const at::Tensor& normalizer) {
      const at::Tensor chosen = logits.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1);
      return (normalizer - chosen).masked_fill(none, 0.0);
    };
    const at::Tensor normalizer = log_sum_exp_rows(a);
    all.kl.narrow(0, first, size).copy_(kl_rows(a, b, normalizer));
    all.nll.narrow(0, first, size).copy_(nll(b, log_sum_exp_rows(b)));
    all.reference_nll.narrow(0, first, size).copy_(nll(a, normalizer));
    all.top1_agrees.narrow(0, first, size).copy_(a.argmax(1) == b.argmax(1));
    return {};
  };
  BA_RETURN_IF_ERROR(run_items(device, std::ssize(tiles.tiles), cancel, run_tile, tiles.whole));
  return all;
}

}  // namespace bitalloc
