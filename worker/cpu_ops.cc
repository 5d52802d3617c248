#include "worker/cpu_ops.h"

#include <cmath>

#include "kernels/cpu_vector.h"
#include "kernels/kl_element.h"

namespace bitalloc {
namespace {

// Σ x² of a row. Four sums in flight hide the latency of additions; lanes stay float32, as in the
// float32 mean of other implementations.
BA_HOST_DEVICE float sum_of_squares(const float* x, int64_t width) {
  Float16 sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Float16 values = load_16(x + i + j * kLanes);
      sums[j] += values * values;
    }
  }
  for (; i + kLanes <= width; i += kLanes) {
    const Float16 values = load_16(x + i);
    sums[0] += values * values;
  }
  const Float16 all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = 0.0F;
  for (int lane = 0; lane < kLanes; ++lane) total += all[lane];
  for (; i < width; ++i) total += x[i] * x[i];
  return total;
}

BA_HOST_DEVICE void scale_row(const float* x, int64_t width, float factor, const float* weight,
                              float* out) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    store_16(load_16(weight + i) * (load_16(x + i) * factor), out + i);
  }
  for (; i < width; ++i) out[i] = weight[i] * (x[i] * factor);
}

BA_HOST_DEVICE float inverse_rms(const float* x, int64_t width, float eps) {
  return 1.0F / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + eps);
}

template <typename Float>
BA_HOST_DEVICE Float silu_times(Float gate, Float up) {
  // Beyond 88, e^-gate leaves float32; silu is 0 to rounding there already.
  const Float exponential = exp_approximate(at_most(-gate, 88.0F));
  return gate / (exponential + 1.0F) * up;
}

BA_HOST_DEVICE void rotate_head(float* x, int64_t half, const float* cos, const float* sin) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Float16 low = load_16(x + i);
    const Float16 high = load_16(x + half + i);
    store_16(low * load_16(cos + i) - high * load_16(sin + i), x + i);
    store_16(high * load_16(cos + half + i) + low * load_16(sin + half + i), x + half + i);
  }
  for (; i < half; ++i) {
    const float low = x[i];
    const float high = x[half + i];
    x[i] = low * cos[i] - high * sin[i];
    x[half + i] = high * cos[half + i] + low * sin[half + i];
  }
}

}  // namespace

BA_CPU_CLONES void rms_norm_cpu(const float* x, int64_t rows, int64_t width, int64_t stride,
                                const float* weight, float eps, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    scale_row(from, width, inverse_rms(from, width, eps), weight, out + row * width);
  }
}

BA_CPU_CLONES void silu_multiply_cpu(const float* gate_up, int64_t rows, int64_t features,
                                     float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* gate = gate_up + row * 2 * features;
    const float* up = gate + features;
    float* to = out + row * features;
    int64_t i = 0;
    for (; i + kLanes <= features; i += kLanes) {
      store_16(silu_times(load_16(gate + i), load_16(up + i)), to + i);
    }
    for (; i < features; ++i) to[i] = silu_times(gate[i], up[i]);
  }
}

BA_CPU_CLONES void norm_rope_cpu(float* qkv, int64_t rows, int64_t width, int64_t tokens,
                                 int64_t head_dim, const HeadSpan& span, const float* cos,
                                 const float* sin) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = row % tokens;
    for (int64_t head = 0; head < span.heads; ++head) {
      float* x = qkv + row * width + span.first + head * head_dim;
      if (span.norm_weight != nullptr) {
        scale_row(x, head_dim, inverse_rms(x, head_dim, span.norm_eps), span.norm_weight, x);
      }
      rotate_head(x, head_dim / 2, cos + position * head_dim, sin + position * head_dim);
    }
  }
}

}  // namespace bitalloc
