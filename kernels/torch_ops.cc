#include "kernels/torch_ops.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cstdint>

#include "kernels/fake_quant.h"
#include "kernels/formats/hadamard.h"
#include "kernels/kl.h"

#if defined(BITALLOC_HAVE_CUDA)
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "kernels/cuda_kernels.h"
#endif

namespace bitalloc {
namespace {

// A tensor as rows of its last dimension, `stride` elements apart.
struct Rows {
  at::Tensor tensor;  // keeps the memory
  int64_t count = 0;
  int64_t length = 0;
  int64_t stride = 0;
};

bool is_dense_with_last_dim_innermost(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() && (x.size(-1) == 1 || x.stride(-1) == 1);
}

// Rows in the order of x's memory if x is dense; otherwise in the order of its indices, without a
// copy where one stride leads from row to row.
Rows rows_of(const at::Tensor& x) {
  const int64_t length = x.size(-1);
  const int64_t count = x.numel() / std::max<int64_t>(length, 1);
  if (is_dense_with_last_dim_innermost(x)) return {x, count, length, length};
  at::Tensor flat = x.flatten(0, -2);
  if (flat.stride(-1) != 1 && length != 1) flat = flat.contiguous();
  return {flat, count, length, flat.stride(0)};
}

template <typename Element>
const Element* data_of(const at::Tensor& tensor) {
  return static_cast<const Element*>(tensor.const_data_ptr());
}

// Splits rows among ATen's threads, about 32k elements a piece.
template <typename Function>
void for_rows(int64_t rows, int64_t length, const Function& function) {
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(length, 1));
  at::parallel_for(0, rows, grain, function);
}

#if defined(BITALLOC_HAVE_CUDA)
void check_launch(const Status& status) { BA_CHECK(status.ok(), status.error().message); }
#endif

template <typename Element>
void fake_quantize_rows(const Quantizer& quantizer, const Rows& in, const Rows& out) {
  const auto* from = data_of<Element>(in.tensor);
  auto* to = static_cast<Element*>(out.tensor.mutable_data_ptr());
#if defined(BITALLOC_HAVE_CUDA)
  if (in.tensor.is_cuda()) {
    check_launch(fake_quantize_cuda(quantizer, from, in.stride, to, out.stride, in.count, in.length,
                                    at::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  for_rows(in.count, in.length, [&](int64_t begin, int64_t end) {
    fake_quantize_cpu(quantizer, from + begin * in.stride, in.stride, to + begin * out.stride,
                      out.stride, end - begin, in.length);
  });
}

void check_device(const at::Tensor& tensor) {
#if defined(BITALLOC_HAVE_CUDA)
  const bool supported = tensor.is_cpu() || tensor.is_cuda();
#else
  const bool supported = tensor.is_cpu();
#endif
  BA_CHECK(supported, "no kernels for this tensor's device in this build");
}

template <typename Element>
at::Tensor absolute_max_of(const at::Tensor& dense) {
  const auto* values = data_of<Element>(dense);
#if defined(BITALLOC_HAVE_CUDA)
  if (dense.is_cuda()) {
    at::Tensor result = at::zeros({}, dense.options().dtype(at::kFloat));
    check_launch(absolute_max_cuda(values, dense.numel(),
                                   static_cast<float*>(result.mutable_data_ptr()),
                                   at::cuda::getCurrentCUDAStream()));
    return result;
  }
#endif
  return at::scalar_tensor(absolute_max_cpu(values, dense.numel()),
                           dense.options().dtype(at::kFloat));
}

// One row of logits must be contiguous; rows may be apart.
Rows logit_rows(const at::Tensor& logits) {
  check_device(logits);
  BA_CHECK(logits.dim() == 2 && logits.scalar_type() == at::kFloat,
           "logits are [rows, vocab] float32");
  BA_CHECK(logits.size(1) > 0 && (logits.stride(1) == 1 || logits.size(1) == 1),
           "a row of logits is contiguous");
  return {logits, logits.size(0), logits.size(1), logits.stride(0)};
}

// Trial row i belongs to reference row i mod reference.count.
struct KlArguments {
  Rows reference;
  Rows trial;
  const double* reference_log_sum_exp;
  double* out;
};

void kl_on_cpu(const KlArguments& arguments) {
  const Rows& reference = arguments.reference;
  const Rows& trial = arguments.trial;
  const auto* a = data_of<float>(reference.tensor);
  const auto* b = data_of<float>(trial.tensor);
  for_rows(trial.count, trial.length, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t partner = row % reference.count;
      kl_rows_cpu(a + partner * reference.stride, b + row * trial.stride, 1, trial.length,
                  reference.stride, trial.stride, arguments.reference_log_sum_exp + partner,
                  arguments.out + row);
    }
  });
}

void check_log_sum_exp(const at::Tensor& values, const Rows& rows) {
  BA_CHECK(values.numel() == rows.count && values.scalar_type() == at::kDouble &&
               values.is_contiguous() && values.device() == rows.tensor.device(),
           "log-sum-exps are what log_sum_exp_rows gives: one a row, float64");
}

}  // namespace

namespace {

// Groups along the rows of x.
at::Tensor fake_quantize_along_rows(const at::Tensor& x, const Quantizer& quantizer) {
  const at::Tensor out = is_dense_with_last_dim_innermost(x)
                             ? at::empty_like(x)
                             : at::empty_like(x, at::MemoryFormat::Contiguous);
  if (x.numel() == 0) return out;
#if defined(BITALLOC_HAVE_CUDA)
  const c10::cuda::OptionalCUDAGuard guard(x.is_cuda() ? std::optional(x.device()) : std::nullopt);
#endif
  const Rows in = rows_of(x);
  if (x.scalar_type() == at::kBFloat16) {
    fake_quantize_rows<Bfloat16>(quantizer, in, rows_of(out));
  } else {
    BA_CHECK(x.scalar_type() == at::kFloat, "fake_quantize wants float32, bfloat16 or float16");
    fake_quantize_rows<float>(quantizer, in, rows_of(out));
  }
  return out;
}

}  // namespace

at::Tensor fake_quantize(const at::Tensor& x, const Format& format, float amax) {
  check_device(x);
  BA_CHECK(x.dim() >= 1, "fake_quantize wants [..., head_dim]");
  if (x.scalar_type() == at::kHalf) {
    return fake_quantize(x.to(at::kFloat), format, amax).to(at::kHalf);
  }
  if (format.rotate == Rotation::kHadamard) {
    Format unrotated = format;
    unrotated.rotate = Rotation::kNone;
    return hadamard(fake_quantize(hadamard(x), unrotated, amax));
  }
  const Quantizer quantizer = make_quantizer(format, amax);
  if (format.axis == Axis::kToken) return fake_quantize_along_rows(x, quantizer);
  BA_CHECK(x.dim() >= 2, "groups along tokens want [..., tokens, head_dim]");
  const at::Tensor channels = x.transpose(-1, -2).contiguous();
  return fake_quantize_along_rows(channels, quantizer).transpose(-1, -2).contiguous();
}

at::Tensor hadamard(const at::Tensor& x) {
  check_device(x);
  BA_CHECK(x.dim() >= 1 && is_hadamard_size(x.size(-1)), "rows are not a power of two long");
  const at::Tensor rows = x.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  const int64_t length = rows.size(-1);
  const int64_t count = rows.numel() / length;
  auto* values = rows.mutable_data_ptr<float>();
#if defined(BITALLOC_HAVE_CUDA)
  if (rows.is_cuda()) {
    const c10::cuda::CUDAGuard guard(rows.device());
    check_launch(hadamard_cuda(values, count, length, at::cuda::getCurrentCUDAStream()));
    return rows.to(x.scalar_type());
  }
#endif
  for_rows(count, length, [&](int64_t begin, int64_t end) {
    hadamard_cpu(values + begin * length, end - begin, length);
  });
  return rows.to(x.scalar_type());
}

at::Tensor absolute_max(const at::Tensor& x) {
  check_device(x);
  if (x.scalar_type() == at::kHalf) return absolute_max(x.to(at::kFloat));
#if defined(BITALLOC_HAVE_CUDA)
  const c10::cuda::OptionalCUDAGuard guard(x.is_cuda() ? std::optional(x.device()) : std::nullopt);
#endif
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  if (x.scalar_type() == at::kBFloat16) return absolute_max_of<Bfloat16>(dense);
  BA_CHECK(x.scalar_type() == at::kFloat, "absolute_max wants float32, bfloat16 or float16");
  return absolute_max_of<float>(dense);
}

at::Tensor log_sum_exp_rows(const at::Tensor& logits) {
  const Rows rows = logit_rows(logits);
  at::Tensor result = at::empty({rows.count}, logits.options().dtype(at::kDouble));
  const auto* from = data_of<float>(logits);
  auto* to = static_cast<double*>(result.mutable_data_ptr());
#if defined(BITALLOC_HAVE_CUDA)
  if (logits.is_cuda()) {
    const c10::cuda::CUDAGuard guard(logits.device());
    check_launch(log_sum_exp_cuda(from, rows.count, rows.length, rows.stride, to,
                                  at::cuda::getCurrentCUDAStream()));
    return result;
  }
#endif
  for_rows(rows.count, rows.length, [&](int64_t begin, int64_t end) {
    log_sum_exp_cpu(from + begin * rows.stride, end - begin, rows.length, rows.stride, to + begin);
  });
  return result;
}

at::Tensor kl_rows(const at::Tensor& reference, const at::Tensor& trial,
                   const at::Tensor& reference_log_sum_exp) {
  if (trial.dim() == 3) {
    BA_CHECK(trial.size(1) == reference.size(0), "trial is [k, n, vocab], reference [n, vocab]");
    return kl_rows(reference, trial.flatten(0, 1), reference_log_sum_exp)
        .view({trial.size(0), trial.size(1)});
  }
  const Rows a = logit_rows(reference);
  const Rows b = logit_rows(trial);
  BA_CHECK(a.length == b.length && reference.device() == trial.device(),
           "reference and trial share vocabulary and device");
  BA_CHECK(a.count > 0 ? b.count % a.count == 0 : b.count == 0,
           "trial has k rows for each of the reference");
  const at::Tensor log_sum_exp =
      reference_log_sum_exp.defined() ? reference_log_sum_exp : log_sum_exp_rows(reference);
  check_log_sum_exp(log_sum_exp, a);
  at::Tensor result = at::empty({b.count}, trial.options().dtype(at::kDouble));
  const KlArguments arguments = {a, b, data_of<double>(log_sum_exp),
                                 static_cast<double*>(result.mutable_data_ptr())};
#if defined(BITALLOC_HAVE_CUDA)
  if (trial.is_cuda()) {
    const c10::cuda::CUDAGuard guard(trial.device());
    check_launch(kl_rows_cuda(data_of<float>(reference), data_of<float>(trial), a.count, b.count,
                              a.length, a.stride, b.stride, arguments.reference_log_sum_exp,
                              arguments.out, at::cuda::getCurrentCUDAStream()));
    return result;
  }
#endif
  kl_on_cpu(arguments);
  return result;
}

at::Tensor kl_sums(const at::Tensor& reference, const at::Tensor& trial,
                   const at::Tensor& reference_log_sum_exp, const at::Tensor& trial_log_sum_exp) {
  BA_CHECK(trial.dim() == 3 && trial.size(1) == reference.size(0) &&
               trial.size(2) == reference.size(1) && trial.device() == reference.device(),
           "trial is [k, n, vocab], reference [n, vocab], on one device");
  const Rows a = logit_rows(reference);
  const Rows b = logit_rows(trial.flatten(0, 1));
  check_log_sum_exp(reference_log_sum_exp, a);
  check_log_sum_exp(trial_log_sum_exp, b);
  at::Tensor result =
      at::empty({2, trial.size(0), trial.size(1)}, trial.options().dtype(at::kDouble));
  const auto* from_a = data_of<float>(a.tensor);
  const auto* from_b = data_of<float>(b.tensor);
  const auto* lse_a = data_of<double>(reference_log_sum_exp);
  const auto* lse_b = data_of<double>(trial_log_sum_exp);
  auto* excess = static_cast<double*>(result.mutable_data_ptr());
  double* drift = excess + b.count;
#if defined(BITALLOC_HAVE_CUDA)
  if (trial.is_cuda()) {
    const c10::cuda::CUDAGuard guard(trial.device());
    check_launch(kl_sums_cuda(from_a, from_b, a.count, b.count, a.length, a.stride, b.stride, lse_a,
                              lse_b, excess, drift, at::cuda::getCurrentCUDAStream()));
    return result;
  }
#endif
  for_rows(b.count, b.length, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t partner = row % a.count;
      kl_sums_cpu(from_a + partner * a.stride, from_b + row * b.stride, 1, b.length, a.stride,
                  b.stride, lse_a + partner, lse_b + row, excess + row, drift + row);
    }
  });
  return result;
}

at::Tensor kl_from_sums(const at::Tensor& sums) {
  const at::Tensor drift = sums[1];
  return sums[0] + (at::log1p(drift) - drift);
}

}  // namespace bitalloc
