// Building blocks of decoder-only transformers: what the family files put together.
//
// Everything runs on ATen operators (and on fused CPU loops of the same roundings, see ops.h). A
// `Layer` runs on a hidden state alone, so that any suffix of the network can start anywhere.
// Thread rule: immutable after construction; forward functions may run on several threads at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "common/model_config.h"
#include "worker/kv_view.h"
#include "worker/parallel.h"
#include "worker/weights.h"

namespace bitalloc {

struct RmsNorm {
  at::Tensor weight;  // [features]; undefined: there is no such norm, x passes
  double eps = 1e-6;

  at::Tensor operator()(const at::Tensor& x) const;
};

// Which keys a query sees, beyond "those before it": built once a batch (`make_token_context`).
struct TokenContext {
  at::Tensor cos;  // [tokens, head_dim], compute type
  at::Tensor sin;
  // Boolean [batch or 1, 1, tokens, tokens], true = seen; undefined: plain causal attention.
  at::Tensor full_mask;
  // The same under the sliding window; only for layers that have one.
  at::Tensor sliding_mask;
  int64_t window = 0;  // of sliding_mask

  // The same for `copies` stacks of the batch, one after the other.
  TokenContext stacked(int64_t copies) const;
};

// q: [batch, heads, tokens, head_dim]; k, v: [batch, kv_heads, tokens, head_dim]. After q/k norm
// and RoPE.
struct Qkv {
  at::Tensor q;
  KvPair kv;
};

struct Attention {
  Linear qkv;  // q, k and v side by side
  Linear output;
  RmsNorm q_norm;  // over head_dim; undefined weight: none
  RmsNorm k_norm;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0: sees all tokens before

  Qkv project(const at::Tensor& normed, const TokenContext& context) const;
  // What the queries make of the keys and values they see: [batch, tokens, heads × head_dim].
  at::Tensor attend(const at::Tensor& q, const SeenKv& seen, const TokenContext& context) const;

 private:
  void rotate_in_place(const at::Tensor& all, const TokenContext& context) const;
};

struct SwiGlu {
  Linear gate_up;  // gate and up side by side
  Linear down;

  // What goes into `down`: silu(gate) · up.
  at::Tensor activations(const at::Tensor& x) const;
};

struct Layer {
  RmsNorm input_norm;
  Attention attention;
  RmsNorm post_attention_norm;
  SwiGlu mlp;

  // hidden: [batch, tokens, hidden_size], as it enters the layer.
  Qkv project(const at::Tensor& hidden, const TokenContext& context) const;
  // The rest of the layer after attention; returns the hidden state that leaves it.
  at::Tensor finish(const at::Tensor& hidden, const at::Tensor& attended) const;
  at::Tensor forward(const at::Tensor& hidden, const TokenContext& context, int64_t index,
                     const KvView& view) const;
};

// A whole network, or one rank's shard of it. Members are what checkpoints call embed_tokens,
// layers, norm and lm_head. Hidden states are whole, and alike, on every rank; heads, the width of
// the MLP and the vocabulary are this rank's.
struct Decoder {
  ModelConfig config;  // of the whole network
  Shard shard;
  at::Tensor embedding;  // [vocab, hidden]
  std::vector<Layer> layers;
  RmsNorm final_norm;
  Linear output;                  // shares the embedding's storage when tied
  at::Tensor output_float32;      // output's weight in float32: CPUs have no bfloat16 product with
                                  // float32 result; undefined where not needed
  at::Tensor rope_inverse;        // [head_dim / 2] float32
  int64_t weight_bytes_read = 0;  // out of the model's files

  // Where its work runs.
  Lanes lanes() const { return {embedding.device(), shard.group}; }
  // ids: int64 [batch, tokens] -> [batch, tokens, hidden_size].
  at::Tensor embed(const at::Tensor& ids) const;
  // mask: boolean [batch, tokens], true = a real token. Sequences whose padding is all on the right
  // take the plain causal path: no real token sees it anyway.
  TokenContext make_token_context(const at::Tensor& mask) const;
  // float32 logits [rows, vocab] of normed hidden states [rows, hidden_size], into `out` when it is
  // defined (float32 [rows, vocab], contiguous). A shard gives its part of the vocabulary.
  at::Tensor logits(const at::Tensor& normed, const at::Tensor& out = at::Tensor()) const;
  // Embedding to final norm.
  at::Tensor forward(const at::Tensor& ids, const TokenContext& context, const KvView& view) const;
};

// What the families of this program differ in.
struct LayerTraits {
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim of q and k, before RoPE
};
// A pre-norm layer with grouped-query attention and SwiGLU. `weights`: the scope of the layer
// ("model.layers.N.").
Layer build_layer(const ModelConfig& config, int64_t index, const WeightScope& weights,
                  const LayerTraits& traits);

// Builds what is the same in all families around the layers that `make_layer` describes.
// `weights`: the scope of the whole file.
using MakeLayer = std::function<Layer(int64_t index, const WeightScope& layer_weights)>;
Decoder build_decoder(const ModelConfig& config, const WeightScope& weights,
                      const MakeLayer& make_layer);

}  // namespace bitalloc
