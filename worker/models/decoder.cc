#include "worker/models/decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "worker/cpu_ops.h"
#include "worker/mixed_attention.h"
#include "worker/ops.h"

namespace bitalloc {
namespace {

// [batch, tokens, heads × head_dim] -> [batch, heads, tokens, head_dim], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t heads, int64_t head_dim) {
  return x.unflatten(-1, {heads, head_dim}).transpose(1, 2);
}

// Padding, if any, is at the end of every sequence.
bool is_right_padded(const at::Tensor& mask) {
  const int64_t tokens = mask.size(1);
  if (tokens < 2) return true;
  const at::Tensor rises = mask.narrow(1, 1, tokens - 1) & ~mask.narrow(1, 0, tokens - 1);
  return !rises.any().item<bool>();
}

// [1, 1, tokens, tokens]: keys at most `window` − 1 tokens back (0: any), not ahead.
at::Tensor band_mask(int64_t tokens, int64_t window, const at::Device& device) {
  const at::Tensor position = at::arange(tokens, at::TensorOptions().device(device));
  const at::Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
  at::Tensor seen = distance >= 0;
  if (window > 0) seen = seen & (distance < window);
  return seen.view({1, 1, tokens, tokens});
}

// The features of some heads.
Span features(Span heads, int64_t head_dim) {
  return {heads.begin * head_dim, heads.count * head_dim};
}

}  // namespace

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  return weight.defined() ? rms_norm(x, weight, eps) : x;
}

TokenContext TokenContext::stacked(int64_t copies) const {
  const auto repeat = [&](const at::Tensor& mask) {
    if (!mask.defined() || mask.size(0) == 1) return mask;
    return mask.repeat({copies, 1, 1, 1});
  };
  return {cos, sin, repeat(full_mask), repeat(sliding_mask), window};
}

void Attention::rotate_in_place(const at::Tensor& all, const TokenContext& context) const {
  const int64_t tokens = all.size(1);
  const int64_t width = all.size(2);
  float* rows = all.mutable_data_ptr<float>();
  const auto weight_of = [](const RmsNorm& norm) {
    return norm.weight.defined() ? norm.weight.const_data_ptr<float>() : nullptr;
  };
  const HeadSpan spans[] = {
      {0, num_heads, weight_of(q_norm), static_cast<float>(q_norm.eps)},
      {num_heads * head_dim, num_kv_heads, weight_of(k_norm), static_cast<float>(k_norm.eps)}};
  for (const HeadSpan& span : spans) {
    norm_rope_cpu(rows, all.size(0) * tokens, width, tokens, head_dim, span,
                  context.cos.const_data_ptr<float>(), context.sin.const_data_ptr<float>());
  }
}

Qkv Attention::project(const at::Tensor& normed, const TokenContext& context) const {
  const at::Tensor all = qkv(normed);
  const int64_t q_width = num_heads * head_dim;
  const int64_t kv_width = num_kv_heads * head_dim;
  const at::Tensor q = split_heads(all.narrow(-1, 0, q_width), num_heads, head_dim);
  const at::Tensor k = split_heads(all.narrow(-1, q_width, kv_width), num_kv_heads, head_dim);
  const at::Tensor v =
      split_heads(all.narrow(-1, q_width + kv_width, kv_width), num_kv_heads, head_dim);
  if (fused_loops_apply(all)) {
    rotate_in_place(all, context);
    return {q, {k, v}};
  }
  return {apply_rope(q_norm(q), context.cos, context.sin),
          {apply_rope(k_norm(k), context.cos, context.sin), v}};
}

at::Tensor Attention::attend(const at::Tensor& q, const SeenKv& seen,
                             const TokenContext& context) const {
  if (!seen.alike_for_all()) {
    return mixed_attention(q, seen, window).transpose(1, 2).flatten(2);
  }
  const at::Tensor& mask = window > 0 ? context.sliding_mask : context.full_mask;
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q, seen.stored.k, seen.stored.v, mask.defined() ? std::optional(mask) : std::nullopt,
      /*dropout_p=*/0.0,
      /*is_causal=*/!mask.defined(), /*scale=*/std::nullopt,
      /*enable_gqa=*/num_heads != num_kv_heads);
  return mixed.transpose(1, 2).flatten(2);
}

at::Tensor SwiGlu::activations(const at::Tensor& x) const { return silu_multiply(gate_up(x)); }

Qkv Layer::project(const at::Tensor& hidden, const TokenContext& context) const {
  return attention.project(input_norm(hidden), context);
}

at::Tensor Layer::finish(const at::Tensor& hidden, const at::Tensor& attended) const {
  const at::Tensor middle = attention.output.plus(hidden, attended);
  return mlp.down.plus(middle, mlp.activations(post_attention_norm(middle)));
}

at::Tensor Layer::forward(const at::Tensor& hidden, const TokenContext& context, int64_t index,
                          const KvView& view) const {
  const Qkv qkv = project(hidden, context);
  return finish(hidden, attention.attend(qkv.q, view.see(index, qkv.kv), context));
}

at::Tensor Decoder::embed(const at::Tensor& ids) const {
  if (shard.group->is_single()) return at::embedding(embedding, ids);
  // One rank has the row of a token, the others add zeros: the sum is exact.
  const at::Tensor own = ids - shard.vocab.begin;
  const at::Tensor elsewhere = (own < 0) | (own >= shard.vocab.count);
  const at::Tensor rows = at::embedding(embedding, own.clamp(0, shard.vocab.count - 1))
                              .masked_fill(elsewhere.unsqueeze(-1), 0.0)
                              .to(at::kFloat);
  shard.group->all_reduce_sum(rows);
  return rows.to(embedding.scalar_type());
}

TokenContext Decoder::make_token_context(const at::Tensor& mask) const {
  const int64_t tokens = mask.size(1);
  TokenContext context;
  const at::Tensor positions = at::arange(tokens, rope_inverse.options());
  const at::Tensor angles = positions.unsqueeze(1) * rope_inverse.unsqueeze(0);
  const at::Tensor doubled = at::cat({angles, angles}, -1);
  const double factor = config.rope.attention_factor;
  context.cos = (doubled.cos() * factor).to(embedding.scalar_type());
  context.sin = (doubled.sin() * factor).to(embedding.scalar_type());

  const bool padded = !is_right_padded(mask);
  const auto with_padding = [&](const at::Tensor& band) {
    if (!padded) return band;
    // A padded query sees itself, or its row would be empty and give NaN; nobody reads it.
    const at::Tensor self = at::eye(tokens, mask.options()).view({1, 1, tokens, tokens});
    return (band & mask.unsqueeze(1).unsqueeze(1)) | self;
  };
  if (padded) context.full_mask = with_padding(band_mask(tokens, 0, mask.device()));
  context.window = *std::max_element(config.sliding_window.begin(), config.sliding_window.end());
  if (context.window > 0 && (padded || context.window < tokens)) {
    context.sliding_mask = with_padding(band_mask(tokens, context.window, mask.device()));
  }
  return context;
}

at::Tensor Decoder::logits(const at::Tensor& normed, const at::Tensor& out) const {
  at::Tensor result = out;
  if (!result.defined()) {
    result = at::empty({normed.size(0), output.out_features()}, normed.options().dtype(at::kFloat));
  }
  if (normed.scalar_type() == at::kFloat) {
    at::mm_out(result, normed, output.weight().t());
  } else if (output_float32.defined()) {
    at::mm_out(result, normed.to(at::kFloat), output_float32.t());
  } else {
    at::mm_out(result, normed, output.weight().t(), at::kFloat);
  }
  return result;
}

at::Tensor Decoder::forward(const at::Tensor& ids, const TokenContext& context,
                            const KvView& view) const {
  at::Tensor hidden = embed(ids);
  for (size_t i = 0; i < layers.size(); ++i) {
    hidden = layers[i].forward(hidden, context, static_cast<int64_t>(i), view);
  }
  return final_norm(hidden);
}

Layer build_layer(const ModelConfig& config, int64_t index, const WeightScope& weights,
                  const LayerTraits& traits) {
  const WeightScope attention = weights / "self_attn";
  const WeightScope mlp = weights / "mlp";
  const auto norm = [&](const WeightScope& scope, const std::string& name) {
    return RmsNorm{scope.tensor(name + ".weight"), config.rms_norm_eps};
  };
  Layer layer;
  layer.input_norm = norm(weights, "input_layernorm");
  const Shard& shard = weights.shard();
  const Span q_rows = features(shard.heads, config.head_dim);
  const Span kv_rows = features(shard.kv_heads, config.head_dim);
  layer.attention.qkv = attention.linears(
      {{"q_proj", q_rows}, {"k_proj", kv_rows}, {"v_proj", kv_rows}}, traits.qkv_bias);
  layer.attention.output = attention.gathering("o_proj", traits.output_bias);
  if (traits.qk_norm) {
    layer.attention.q_norm = norm(attention, "q_norm");
    layer.attention.k_norm = norm(attention, "k_norm");
  }
  layer.attention.num_heads = shard.heads.count;
  layer.attention.num_kv_heads = shard.kv_heads.count;
  layer.attention.head_dim = config.head_dim;
  layer.attention.window = config.sliding_window[static_cast<size_t>(index)];
  layer.post_attention_norm = norm(weights, "post_attention_layernorm");
  layer.mlp.gate_up =
      mlp.linears({{"gate_proj", shard.mlp}, {"up_proj", shard.mlp}}, traits.mlp_bias);
  layer.mlp.down = mlp.gathering("down_proj", traits.mlp_bias);
  return layer;
}

Decoder build_decoder(const ModelConfig& config, const WeightScope& weights,
                      const MakeLayer& make_layer) {
  const WeightScope model = weights / "model";
  Decoder decoder;
  decoder.config = config;
  decoder.shard = weights.shard();
  const Span vocab = decoder.shard.vocab;
  decoder.embedding = model.rows("embed_tokens.weight", vocab);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    decoder.layers.push_back(make_layer(i, model / "layers" / std::to_string(i)));
  }
  decoder.final_norm = {model.tensor("norm.weight"), config.rms_norm_eps};
  decoder.output = config.tie_word_embeddings
                       ? Linear(decoder.embedding, at::Tensor())
                       : weights.linears({{"lm_head", vocab}}, /*bias=*/false);
  if (decoder.embedding.is_cpu() && decoder.embedding.scalar_type() != at::kFloat) {
    decoder.output_float32 = decoder.output.weight().to(at::kFloat);
  }
  const std::vector<float> inverse = rope_inverse_frequencies(config);
  decoder.rope_inverse = at::tensor(inverse).to(decoder.embedding.device());
  return decoder;
}

}  // namespace bitalloc
