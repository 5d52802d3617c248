#include "worker/mixed_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace bitalloc {
namespace {

// Queries [begin, end), and the keys [first_key, end) that they may look at.
struct Reach {
  int64_t begin;
  int64_t end;
  int64_t first_key;

  int64_t queries() const { return end - begin; }
};

// One side's keys of a reach: those before `mixed` are stored for every query, those from `exact`
// on for none.
struct Split {
  int64_t mixed;
  int64_t exact;
  at::Tensor is_stored;  // bool [queries, exact − mixed]
};

Split split_keys(const Visibility& rule, Side side, const Reach& reach, const at::Device& device) {
  std::vector<int64_t> counts;  // they never fall
  for (int64_t i = reach.begin; i < reach.end; ++i) {
    // What is ahead of a query is hidden from it: with one rule for all there is nothing to mix.
    counts.push_back(rule.see == See::kAll ? reach.end : stored_tokens(rule, side, i));
  }
  Split split;
  split.mixed = std::max(counts.front(), reach.first_key);
  split.exact = std::max(counts.back(), reach.first_key);
  const at::Tensor keys = at::arange(split.mixed, split.exact, at::kLong);
  split.is_stored = (keys.unsqueeze(0) < at::tensor(counts).unsqueeze(1)).to(device);
  return split;
}

// bool [queries, keys], true where the query must not look.
at::Tensor hidden_keys(const Reach& reach, int64_t sliding_window, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor query = at::arange(reach.begin, reach.end, options).unsqueeze(1);
  const at::Tensor key = at::arange(reach.first_key, reach.end, options).unsqueeze(0);
  const at::Tensor ahead = key > query;
  return sliding_window > 0 ? ahead | (key <= query - sliding_window) : ahead;
}

// How one reach looks at any head.
struct Masks {
  Reach reach;
  at::Tensor hidden;
  Split k;
  Split v;
};

// One side of some KV heads of a sequence: [kv_heads, tokens, head_dim] each.
struct Rows {
  at::Tensor stored;
  at::Tensor exact;
};

at::Tensor in_float(const at::Tensor& rows, int64_t begin, int64_t end) {
  return rows.narrow(1, begin, end - begin).to(at::kFloat);
}

// q: [kv_heads, heads each × queries, head_dim] -> [kv_heads, heads each, queries, keys].
at::Tensor scores_of(const at::Tensor& q, const Rows& k, const Masks& masks) {
  const auto against = [&](const at::Tensor& rows, int64_t begin, int64_t end) {
    return at::bmm(q, in_float(rows, begin, end).transpose(1, 2))
        .unflatten(1, {-1, masks.reach.queries()});
  };
  const Split& split = masks.k;
  const at::Tensor mixed = at::where(split.is_stored, against(k.stored, split.mixed, split.exact),
                                     against(k.exact, split.mixed, split.exact));
  return at::cat({against(k.stored, masks.reach.first_key, split.mixed), mixed,
                  against(k.exact, split.exact, masks.reach.end)},
                 -1);
}

// weights: as scores_of returns -> [kv_heads, heads each × queries, head_dim].
at::Tensor weighted_sum(const at::Tensor& weights, const Rows& v, const Masks& masks) {
  const Split& split = masks.v;
  const auto some = [&](int64_t begin, int64_t end) {
    return weights.narrow(-1, begin - masks.reach.first_key, end - begin);
  };
  const auto sum = [](const at::Tensor& of, const at::Tensor& rows, int64_t begin, int64_t end) {
    return at::bmm(of.flatten(1, 2), in_float(rows, begin, end));
  };
  const at::Tensor mixed = some(split.mixed, split.exact);
  at::Tensor out =
      sum(some(masks.reach.first_key, split.mixed), v.stored, masks.reach.first_key, split.mixed);
  out += sum(some(split.exact, masks.reach.end), v.exact, split.exact, masks.reach.end);
  out += sum(mixed.masked_fill(~split.is_stored, 0.0), v.stored, split.mixed, split.exact);
  out += sum(mixed.masked_fill(split.is_stored, 0.0), v.exact, split.mixed, split.exact);
  return out;
}

// q, out: [heads, queries, head_dim] of the KV heads.
void attend_tile(const at::Tensor& q, const Rows& k, const Rows& v, const Masks& masks,
                 const at::Tensor& out) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  const at::Tensor scaled =
      at::empty(q.sizes(), q.options().dtype(at::kFloat)).copy_(q).mul_(scale);
  const at::Tensor weights = [&] {
    at::Tensor scores = scores_of(scaled.view({k.exact.size(0), -1, q.size(-1)}), k, masks);
    scores.masked_fill_(masks.hidden, -std::numeric_limits<float>::infinity());
    return at::softmax(scores, -1);
  }();
  out.copy_(weighted_sum(weights, v, masks).view(q.sizes()));
}

}  // namespace

at::Tensor mixed_attention(const at::Tensor& q, const SeenKv& seen, int64_t sliding_window) {
  const int64_t kv_heads = seen.exact.k.size(1);
  return mixed_attention(
      q, seen, sliding_window,
      mixed_tile({q.size(2), kv_heads, q.size(1) / kv_heads, q.size(3), q.is_cpu()}));
}

at::Tensor mixed_attention(const at::Tensor& q, const SeenKv& seen, int64_t sliding_window,
                           const MixedTile& tile) {
  const int64_t tokens = q.size(2);
  const int64_t kv_heads = seen.exact.k.size(1);
  const int64_t heads_each = q.size(1) / kv_heads;
  at::Tensor out = at::empty(q.sizes(), q.options());
  for (int64_t begin = 0; begin < tokens; begin += tile.queries) {
    const int64_t first_key =
        sliding_window > 0 ? std::max<int64_t>(0, begin + 1 - sliding_window) : 0;
    const Reach reach{begin, std::min(begin + tile.queries, tokens), first_key};
    const Masks masks{reach, hidden_keys(reach, sliding_window, q.device()),
                      split_keys(seen.k, Side::kK, reach, q.device()),
                      split_keys(seen.v, Side::kV, reach, q.device())};
    for (int64_t sequence = 0; sequence < q.size(0); ++sequence) {
      for (int64_t head = 0; head < kv_heads; head += tile.kv_heads) {
        const int64_t heads = std::min(tile.kv_heads, kv_heads - head);
        const auto rows = [&](const at::Tensor& x) { return x[sequence].narrow(0, head, heads); };
        const auto own = [&](const at::Tensor& x) {
          return x[sequence]
              .narrow(0, head * heads_each, heads * heads_each)
              .narrow(1, begin, reach.queries());
        };
        attend_tile(own(q), {rows(seen.stored.k), rows(seen.exact.k)},
                    {rows(seen.stored.v), rows(seen.exact.v)}, masks, own(out));
      }
    }
  }
  return out;
}

}  // namespace bitalloc
