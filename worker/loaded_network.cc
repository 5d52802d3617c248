#include "worker/loaded_network.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "worker/ops.h"
#include "worker/parallel.h"

namespace bitalloc {
namespace {

// Bytes of tensors, shared memory counted once.
class Total {
 public:
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || !seen_.insert(tensor.storage().data()).second) return;
    bytes_ += static_cast<int64_t>(tensor.storage().nbytes());
  }
  void add(const Linear& linear) {
    add(linear.weight());
    add(linear.bias());
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::set<const void*> seen_;
  int64_t bytes_ = 0;
};

int64_t weight_bytes(const Decoder& model) {
  Total total;
  total.add(model.embedding);
  total.add(model.final_norm.weight);
  total.add(model.rope_inverse);
  total.add(model.output);
  total.add(model.output_float32);
  for (const Layer& layer : model.layers) {
    for (const Linear* linear :
         {&layer.attention.qkv, &layer.attention.output, &layer.mlp.gate_up, &layer.mlp.down}) {
      total.add(*linear);
    }
    for (const RmsNorm* norm : {&layer.input_norm, &layer.post_attention_norm,
                                &layer.attention.q_norm, &layer.attention.k_norm}) {
      total.add(norm->weight);
    }
  }
  return total.bytes();
}

}  // namespace

int64_t loading_bytes(const ModelFiles& files, int64_t element_bytes, bool wide_output) {
  const ModelConfig& config = files.config;
  int64_t largest_in_file = 0;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    const TensorView* view = files.tensors->find(expected.name);
    if (view != nullptr) {
      largest_in_file = std::max(largest_in_file, static_cast<int64_t>(view->bytes.size()));
    }
  }
  const int64_t q = config.num_heads * config.head_dim;
  const int64_t fused =
      std::max(2 * config.intermediate_size, q + config.k_width() + config.v_width());
  const int64_t output = wide_output ? config.vocab_size * config.hidden_size * 4 : 0;
  return (files.parameters + fused * config.hidden_size) * element_bytes + output + largest_in_file;
}

NetworkShape network_shape(const Decoder& model, const CutOptions& cut) {
  const Attention& attention = model.layers.front().attention;
  const at::Tensor& embedding = model.embedding;
  NetworkShape shape;
  shape.layers = std::ssize(model.layers);
  shape.hidden_size = embedding.size(1);
  shape.intermediate_size = model.layers.front().mlp.gate_up.out_features() / 2;
  shape.num_heads = attention.num_heads;
  shape.num_kv_heads = attention.num_kv_heads;
  shape.head_dim = attention.head_dim;
  shape.vocab_size = model.output.out_features();
  shape.window =
      *std::max_element(model.config.sliding_window.begin(), model.config.sliding_window.end());
  shape.element_bytes = embedding.element_size();
  shape.on_cpu = embedding.is_cpu();
  shape.fused = shape.on_cpu && embedding.scalar_type() == at::kFloat;
  shape.threads = model.lanes().slots();
  shape.tile_bytes = cut.tile_bytes;
  shape.stack_bytes = cut.stack_bytes;
  shape.weight_bytes = weight_bytes(model);
  return shape;
}

}  // namespace bitalloc
