#include "worker/head.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/torch_ops.h"
#include "worker/parallel.h"

namespace bitalloc {
namespace {

// A core's matrix product is at full speed from some hundred rows on; more only costs memory.
constexpr int64_t kCpuTileRows = 256;

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

// Rows of logits that a tile may hold.
int64_t tile_rows(const Decoder& model, int64_t tile_bytes) {
  const int64_t row_bytes = model.shard.longest_vocab * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, tile_bytes / row_bytes);
}

// With several ranks, logits are those of this rank's part of the vocabulary [rows, part]; what is
// made of them below is of the whole vocabulary, on every rank.

// log Σ exp, float64 [rows].
at::Tensor log_sum_exp(const Decoder& model, const at::Tensor& logits) {
  const at::Tensor own = log_sum_exp_rows(logits);
  Collective& group = *model.shard.group;
  return group.is_single() ? own : at::logsumexp(group.all_gather(own), 0);
}

// KL of trials [k, rows, part], float64 [k, rows].
at::Tensor kl(const Decoder& model, const at::Tensor& reference, const at::Tensor& trials,
              const at::Tensor& reference_log_sum_exp) {
  Collective& group = *model.shard.group;
  if (group.is_single()) return kl_rows(reference, trials, reference_log_sum_exp);
  const at::Tensor sums =
      kl_sums(reference, trials, reference_log_sum_exp, log_sum_exp(model, trials.flatten(0, 1)));
  group.all_reduce_sum(sums);
  return kl_from_sums(sums);
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

Result<at::Tensor> tiled_kl(const Decoder& model, const at::Tensor& reference,
                            const at::Tensor& trials, int64_t tile_bytes,
                            const std::atomic<bool>& cancel) {
  const c10::InferenceMode guard;
  const at::Device device = reference.device();
  const int64_t rows = reference.size(0);
  const int64_t count = trials.size(0);
  const int64_t capacity = tile_rows(model, tile_bytes);
  const int64_t step = device.is_cpu() ? std::min(capacity, kCpuTileRows) : capacity;
  const int64_t stack = std::clamp<int64_t>(capacity / step, 1, count);
  const at::Tensor result = at::empty({count, rows}, reference.options().dtype(at::kDouble));
  const Lanes lanes = model.lanes();
  std::vector<Buffers> buffers(static_cast<size_t>(lanes.slots()));
  BA_RETURN_IF_ERROR(
      run_items(lanes, (rows + step - 1) / step, cancel, [&](int64_t item, int64_t slot) -> Status {
        Buffers& mine = buffers[static_cast<size_t>(slot)];
        const int64_t first = item * step;
        const int64_t size = std::min(step, rows - first);
        const at::Tensor a = model.logits(reference.narrow(0, first, size),
                                          rows_of(mine.reference, size, step, model));
        const at::Tensor normalizer = log_sum_exp(model, a);
        for (int64_t t = 0; t < count; t += stack) {
          if (lanes.stopped(cancel)) return cancelled("cancelled");
          const int64_t some = std::min(stack, count - t);
          const at::Tensor hidden = trials.narrow(0, t, some).narrow(1, first, size);
          const at::Tensor b = model.logits(hidden.reshape({some * size, -1}),
                                            rows_of(mine.trials, some * size, stack * step, model));
          result.narrow(0, t, some)
              .narrow(1, first, size)
              .copy_(kl(model, a, b.view({some, size, -1}), normalizer));
        }
        return {};
      }));
  return result.cpu();
}

Result<TokenStatistics> tiled_statistics(const Decoder& model, const at::Tensor& reference,
                                         const at::Tensor& trial, const at::Tensor& targets,
                                         int64_t tile_bytes, const std::atomic<bool>& cancel) {
  const c10::InferenceMode guard;
  const at::Device device = reference.device();
  const int64_t rows = reference.size(0);
  const int64_t step = device.is_cpu() ? std::min(tile_rows(model, tile_bytes), kCpuTileRows)
                                       : tile_rows(model, tile_bytes);
  const Lanes lanes = model.lanes();
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  TokenStatistics all{at::empty({rows}, wide), at::empty({rows}, wide), at::empty({rows}, wide),
                      at::empty({rows}, at::TensorOptions().dtype(at::kBool))};
  std::vector<Buffers> buffers(static_cast<size_t>(lanes.slots()));
  BA_RETURN_IF_ERROR(
      run_items(lanes, (rows + step - 1) / step, cancel, [&](int64_t item, int64_t slot) -> Status {
        Buffers& mine = buffers[static_cast<size_t>(slot)];
        const int64_t first = item * step;
        const int64_t size = std::min(step, rows - first);
        const at::Tensor a = model.logits(reference.narrow(0, first, size),
                                          rows_of(mine.reference, size, step, model));
        const at::Tensor b =
            model.logits(trial.narrow(0, first, size), rows_of(mine.trials, size, step, model));
        const at::Tensor target = targets.narrow(0, first, size).to(device);
        const at::Tensor none = target < 0;
        const auto nll = [&](const at::Tensor& logits, const at::Tensor& normalizer) {
          const at::Tensor chosen = logits_of(model, logits, target.clamp_min(0));
          return (normalizer - chosen).masked_fill(none, 0.0);
        };
        const at::Tensor normalizer = log_sum_exp(model, a);
        all.kl.narrow(0, first, size).copy_(kl(model, a, b.unsqueeze(0), normalizer).squeeze(0));
        all.nll.narrow(0, first, size).copy_(nll(b, log_sum_exp(model, b)));
        all.reference_nll.narrow(0, first, size).copy_(nll(a, normalizer));
        all.top1_agrees.narrow(0, first, size)
            .copy_(most_likely(model, a) == most_likely(model, b));
        return {};
      }));
  return all;
}

}  // namespace bitalloc
