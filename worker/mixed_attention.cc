#include "worker/mixed_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "worker/memory_plan.h"

namespace bitalloc {
namespace {

// Queries [begin, end) of all heads.
struct Tile {
  int64_t begin;
  int64_t end;
};

// [queries, keys], true where the query sees the key as stored.
at::Tensor stored_mask(const Visibility& rule, Side side, const Tile& tile,
                       const at::Device& device) {
  std::vector<int64_t> counts;
  for (int64_t i = tile.begin; i < tile.end; ++i) counts.push_back(stored_tokens(rule, side, i));
  const at::Tensor keys = at::arange(tile.end, at::kLong);
  return (keys.unsqueeze(0) < at::tensor(counts).unsqueeze(1)).to(device);
}

// [queries, keys], true where the query must not look.
at::Tensor hidden_mask(const Tile& tile, int64_t sliding_window, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor distance = at::arange(tile.begin, tile.end, options).unsqueeze(1) -
                              at::arange(tile.end, options).unsqueeze(0);
  const at::Tensor ahead = distance < 0;
  return sliding_window > 0 ? ahead | (distance >= sliding_window) : ahead;
}

struct Masks {
  at::Tensor hidden;
  at::Tensor k_stored;
  at::Tensor v_stored;
};

// One sequence and KV head: q [heads, queries, head_dim], keys and values [keys, head_dim].
struct HeadPair {
  at::Tensor stored;
  at::Tensor exact;
};

at::Tensor attend_tile(const at::Tensor& q, const HeadPair& k, const HeadPair& v,
                       const Masks& masks) {
  const at::Tensor stored = at::matmul(q, k.stored.t()).to(at::kFloat);
  at::Tensor scores = at::matmul(q, k.exact.t()).to(at::kFloat);
  scores = at::where(masks.k_stored, stored, scores);
  scores.mul_(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
  scores.masked_fill_(masks.hidden, -std::numeric_limits<float>::infinity());
  const at::Tensor weights = at::softmax(scores, -1);
  const at::Tensor of_stored = weights.masked_fill(~masks.v_stored, 0.0).to(q.scalar_type());
  const at::Tensor of_exact = weights.masked_fill(masks.v_stored, 0.0).to(q.scalar_type());
  return at::matmul(of_stored, v.stored).add_(at::matmul(of_exact, v.exact));
}

}  // namespace

at::Tensor mixed_attention(const at::Tensor& q, const SeenKv& seen, int64_t sliding_window) {
  const int64_t tokens = q.size(2);
  const int64_t kv_heads = seen.stored.k.size(1);
  const int64_t heads_each = q.size(1) / kv_heads;
  at::Tensor out = at::empty(q.sizes(), q.options());
  const int64_t step = mixed_tile_queries(tokens, heads_each);
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const Tile tile{begin, std::min(begin + step, tokens)};
    const Masks masks{hidden_mask(tile, sliding_window, q.device()),
                      stored_mask(seen.k, Side::kK, tile, q.device()),
                      stored_mask(seen.v, Side::kV, tile, q.device())};
    const int64_t queries = tile.end - tile.begin;
    for (int64_t sequence = 0; sequence < q.size(0); ++sequence) {
      for (int64_t head = 0; head < kv_heads; ++head) {
        const auto own = [&](const at::Tensor& x) {
          return x[sequence][head].narrow(0, 0, tile.end);
        };
        const auto own_queries = [&](const at::Tensor& x) {
          return x[sequence].narrow(0, head * heads_each, heads_each).narrow(1, begin, queries);
        };
        own_queries(out).copy_(attend_tile(own_queries(q), {own(seen.stored.k), own(seen.exact.k)},
                                           {own(seen.stored.v), own(seen.exact.v)}, masks));
      }
    }
  }
  return out;
}

}  // namespace bitalloc
