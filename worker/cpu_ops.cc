#include "worker/cpu_ops.h"

#include <cmath>

#include "kernels/cpu_vector.h"
#include "kernels/kl_element.h"

namespace bitalloc {
namespace {

// Σ x² of a row. Four sums in flight hide the latency of additions; lanes stay float32, as in the
// float32 mean of other implementations.
template <typename Vector>
BA_HOST_DEVICE float sum_of_squares(const float* x, int64_t width) {
  constexpr int64_t kWidth = Vector::kWidth;
  typename Vector::Float sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kWidth <= width; i += 4 * kWidth) {
    for (int j = 0; j < 4; ++j) {
      const auto values = load<Vector>(x + i + j * kWidth);
      sums[j] += values * values;
    }
  }
  for (; i + kWidth <= width; i += kWidth) {
    const auto values = load<Vector>(x + i);
    sums[0] += values * values;
  }
  const auto all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = 0.0F;
  for (int64_t lane = 0; lane < kWidth; ++lane) total += all[lane];
  for (; i < width; ++i) total += x[i] * x[i];
  return total;
}

template <typename Vector>
BA_HOST_DEVICE void scale_row(const float* x, int64_t width, float factor, const float* weight,
                              float* out) {
  int64_t i = 0;
  for (; i + Vector::kWidth <= width; i += Vector::kWidth) {
    store<Vector>(load<Vector>(weight + i) * (load<Vector>(x + i) * factor), out + i);
  }
  for (; i < width; ++i) out[i] = weight[i] * (x[i] * factor);
}

template <typename Vector>
BA_HOST_DEVICE float inverse_rms(const float* x, int64_t width, float eps) {
  return 1.0F / std::sqrt(sum_of_squares<Vector>(x, width) / static_cast<float>(width) + eps);
}

template <typename Float>
BA_HOST_DEVICE Float silu_times(Float gate, Float up) {
  // Beyond 88, e^-gate leaves float32; silu is 0 to rounding there already.
  const Float exponential = exp_approximate(at_most(-gate, 88.0F));
  return gate / (exponential + 1.0F) * up;
}

template <typename Vector>
BA_HOST_DEVICE void rotate_head(float* x, int64_t half, const float* cos, const float* sin) {
  int64_t i = 0;
  for (; i + Vector::kWidth <= half; i += Vector::kWidth) {
    const auto low = load<Vector>(x + i);
    const auto high = load<Vector>(x + half + i);
    store<Vector>(low * load<Vector>(cos + i) - high * load<Vector>(sin + i), x + i);
    store<Vector>(high * load<Vector>(cos + half + i) + low * load<Vector>(sin + half + i),
                  x + half + i);
  }
  for (; i < half; ++i) {
    const float low = x[i];
    const float high = x[half + i];
    x[i] = low * cos[i] - high * sin[i];
    x[half + i] = high * cos[half + i] + low * sin[half + i];
  }
}

struct RmsNormArguments {
  const float* x;
  int64_t rows, width, stride;
  const float* weight;
  float eps;
  float* out;
};

template <typename Vector>
BA_HOST_DEVICE void rms_norm_loop(const RmsNormArguments& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const float* from = a.x + row * a.stride;
    const float factor = inverse_rms<Vector>(from, a.width, a.eps);
    scale_row<Vector>(from, a.width, factor, a.weight, a.out + row * a.width);
  }
}

struct SiluMultiplyArguments {
  const float* gate_up;
  int64_t rows, features;
  float* out;
};

template <typename Vector>
BA_HOST_DEVICE void silu_multiply_loop(const SiluMultiplyArguments& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const float* gate = a.gate_up + row * 2 * a.features;
    const float* up = gate + a.features;
    float* to = a.out + row * a.features;
    int64_t i = 0;
    for (; i + Vector::kWidth <= a.features; i += Vector::kWidth) {
      store<Vector>(silu_times(load<Vector>(gate + i), load<Vector>(up + i)), to + i);
    }
    for (; i < a.features; ++i) to[i] = silu_times(gate[i], up[i]);
  }
}

struct NormRopeArguments {
  float* qkv;
  int64_t rows, width, tokens, head_dim;
  const HeadSpan& span;
  const float* cos;
  const float* sin;
};

template <typename Vector>
BA_HOST_DEVICE void norm_rope_loop(const NormRopeArguments& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t at = (row % a.tokens) * a.head_dim;
    for (int64_t head = 0; head < a.span.heads; ++head) {
      float* x = a.qkv + row * a.width + a.span.first + head * a.head_dim;
      if (a.span.norm_weight != nullptr) {
        const float factor = inverse_rms<Vector>(x, a.head_dim, a.span.norm_eps);
        scale_row<Vector>(x, a.head_dim, factor, a.span.norm_weight, x);
      }
      rotate_head<Vector>(x, a.head_dim / 2, a.cos + at, a.sin + at);
    }
  }
}

BA_DEFINE_FOR_CPUS(rms_norm_for_cpu, rms_norm_loop, RmsNormArguments)
BA_DEFINE_FOR_CPUS(silu_multiply_for_cpu, silu_multiply_loop, SiluMultiplyArguments)
BA_DEFINE_FOR_CPUS(norm_rope_for_cpu, norm_rope_loop, NormRopeArguments)

}  // namespace

void rms_norm_cpu(const float* x, int64_t rows, int64_t width, int64_t stride, const float* weight,
                  float eps, float* out) {
  rms_norm_for_cpu({x, rows, width, stride, weight, eps, out});
}

void silu_multiply_cpu(const float* gate_up, int64_t rows, int64_t features, float* out) {
  silu_multiply_for_cpu({gate_up, rows, features, out});
}

void norm_rope_cpu(float* qkv, int64_t rows, int64_t width, int64_t tokens, int64_t head_dim,
                   const HeadSpan& span, const float* cos, const float* sin) {
  norm_rope_for_cpu({qkv, rows, width, tokens, head_dim, span, cos, sin});
}

}  // namespace bitalloc
