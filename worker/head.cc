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

// With several ranks, logits are those of this rank's part of the vocabulary [rows, part]; what is
// made of them below is of the whole vocabulary, on every rank.

// log Σ exp, float64 [rows].
at::Tensor log_sum_exp(const Decoder& model, const at::Tensor& logits) {
  const at::Tensor own = log_sum_exp_rows(logits);
  Collective& group = *model.shard.group;
  return group.is_single() ? own : at::logsumexp(group.all_gather(own), 0);
}

// KL of trial [rows, part], float64 [rows].
at::Tensor kl(const Decoder& model, const at::Tensor& reference, const at::Tensor& trial,
              const at::Tensor& reference_log_sum_exp) {
  Collective& group = *model.shard.group;
  if (group.is_single()) return kl_rows(reference, trial, reference_log_sum_exp);
  const at::Tensor sums =
      kl_sums(reference, trial.unsqueeze(0), reference_log_sum_exp, log_sum_exp(model, trial));
  group.all_reduce_sum(sums);
  return kl_from_sums(sums).squeeze(0);
}

// The logits of `targets` (int64 [rows], within the vocabulary), [rows].
at::Tensor logits_of(const Decoder& model, const at::Tensor& logits, const at::Tensor& targets) {
  const Span part = model.shard.vocab;
  const at::Tensor own = targets - part.begin;
  const at::Tensor chosen =
      logits.gather(1, own.clamp(0, part.count - 1).unsqueeze(1)).squeeze(1).to(at::kDouble);
  const at::Tensor result = chosen.masked_fill((own < 0) | (own >= part.count), 0.0);
  model.shard.group->all_reduce_sum(result);  // one rank has it, the others add zeros
  return result;
}

// The most likely tokens, int64 [rows]; of equals the first.
at::Tensor most_likely(const Decoder& model, const at::Tensor& logits) {
  Collective& group = *model.shard.group;
  if (group.is_single()) return logits.argmax(1);
  const auto [largest, index] = logits.max(1);
  const at::Tensor own =
      at::stack({largest.to(at::kDouble), (index + model.shard.vocab.begin).to(at::kDouble)});
  const at::Tensor all = group.all_gather(own);  // [ranks, 2, rows]
  const at::Tensor winner = all.select(1, 0).argmax(0, /*keepdim=*/true);
  return all.select(1, 1).gather(0, winner).squeeze(0).to(at::kLong);
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
  const Lanes lanes = model.lanes();
  const int64_t count = trials.size(0);
  const at::Tensor result =
      at::empty({count, reference.size(0)}, reference.options().dtype(at::kDouble));
  std::vector<Buffers> buffers(static_cast<size_t>(lanes.slots()));
  const auto run_tile = [&](int64_t item, int64_t slot) -> Status {
    Buffers& mine = buffers[static_cast<size_t>(slot)];
    const auto [first, rows] = tiles.tiles[static_cast<size_t>(item)];
    const at::Tensor a = model.logits(reference.narrow(0, first, rows),
                                      rows_of(mine.reference, rows, tiles.most_rows, model));
    const at::Tensor normalizer = log_sum_exp(model, a);
    for (int64_t t = 0; t < count; ++t) {
      if (lanes.stopped(cancel)) return cancelled("cancelled");
      const at::Tensor b = model.logits(trials[t].narrow(0, first, rows),
                                        rows_of(mine.trials, rows, tiles.most_rows, model));
      result[t].narrow(0, first, rows).copy_(kl(model, a, b, normalizer));
    }
    return {};
  };
  BA_RETURN_IF_ERROR(run_items(lanes, std::ssize(tiles.tiles), cancel, run_tile, tiles.whole));
  return result.cpu();
}

Result<TokenStatistics> tiled_statistics(const Decoder& model, const at::Tensor& reference,
                                         const at::Tensor& trial, const at::Tensor& targets,
                                         const RowTiles& tiles, const std::atomic<bool>& cancel) {
  const c10::InferenceMode guard;
  const Lanes lanes = model.lanes();
  const int64_t rows = reference.size(0);
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  TokenStatistics all{at::empty({rows}, wide), at::empty({rows}, wide), at::empty({rows}, wide),
                      at::empty({rows}, at::TensorOptions().dtype(at::kBool))};
  std::vector<Buffers> buffers(static_cast<size_t>(lanes.slots()));
  const auto run_tile = [&](int64_t item, int64_t slot) -> Status {
    Buffers& mine = buffers[static_cast<size_t>(slot)];
    const auto [first, size] = tiles.tiles[static_cast<size_t>(item)];
    const at::Tensor a = model.logits(reference.narrow(0, first, size),
                                      rows_of(mine.reference, size, tiles.most_rows, model));
    const at::Tensor b = model.logits(trial.narrow(0, first, size),
                                      rows_of(mine.trials, size, tiles.most_rows, model));
    const at::Tensor target = targets.narrow(0, first, size).to(lanes.device);
    const at::Tensor none = target < 0;
    const auto nll = [&](const at::Tensor& logits, const at::Tensor& normalizer) {
      const at::Tensor chosen = logits_of(model, logits, target.clamp_min(0));
      return (normalizer - chosen).masked_fill(none, 0.0);
    };
    const at::Tensor normalizer = log_sum_exp(model, a);
    all.kl.narrow(0, first, size).copy_(kl(model, a, b, normalizer));
    all.nll.narrow(0, first, size).copy_(nll(b, log_sum_exp(model, b)));
    all.reference_nll.narrow(0, first, size).copy_(nll(a, normalizer));
    all.top1_agrees.narrow(0, first, size).copy_(most_likely(model, a) == most_likely(model, b));
    return {};
  };
  BA_RETURN_IF_ERROR(run_items(lanes, std::ssize(tiles.tiles), cancel, run_tile, tiles.whole));
  return all;
}

}  // namespace bitalloc
