// The tensor functions on a GPU against the same on the CPU.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <string>

#include "kernels/gpu_check.h"
#include "kernels/torch_ops.h"

namespace bitalloc {
namespace {

using gpu_check::expect;

void check_fake_quantize(const at::Tensor& x, const char* what) {
  for (const char* name : {"bf16", "fp8_e4m3", "nvfp4", "int4[group=32,axis=channel]", "mxfp4"}) {
    const Format format = *parse_format(name);
    const at::Tensor cpu = fake_quantize(x, format, 448);
    // Moving a view keeps its strides only if it is dense: slice after moving.
    expect(at::equal(fake_quantize(x.to(at::kCUDA), format, 448).to(at::kCPU), cpu),
           std::string("fake_quantize of ") + what);
  }
}

int run() {
  if (!gpu_check::device_found()) return gpu_check::kSkipped;
  at::manual_seed(3);
  check_fake_quantize(at::randn({2, 5, 3, 64}).transpose(1, 2), "a transposed tensor");
  check_fake_quantize(at::randn({2, 5, 80}).to(at::kBFloat16), "bfloat16");
  check_fake_quantize(at::randn({7, 33}).to(at::kHalf), "float16 with a tail");
  const at::Tensor fused = at::randn({6, 144});
  const at::Tensor slice = fused.to(at::kCUDA).narrow(1, 48, 48);
  expect(at::equal(fake_quantize(slice, Format{FormatKind::kNvfp4}, 448).to(at::kCPU),
                   fake_quantize(fused.narrow(1, 48, 48), Format{FormatKind::kNvfp4}, 448)),
         "fake_quantize of a slice");
  expect(absolute_max(fused.to(at::kCUDA)).item<float>() == absolute_max(fused).item<float>(),
         "absolute_max");
  const at::Tensor rows = at::randn({9, 5, 64}).to(at::kBFloat16);
  expect(at::equal(hadamard(rows.to(at::kCUDA)).to(at::kCPU), hadamard(rows)), "hadamard");
  const at::Tensor reference = at::randn({5, 3001}) * 3;
  const at::Tensor trial = reference + at::randn({4, 5, 3001}) * 0.2;
  expect(at::allclose(kl_rows(reference.to(at::kCUDA), trial.to(at::kCUDA)).to(at::kCPU),
                      kl_rows(reference, trial), 1e-5, 0),
         "kl_rows");
  return gpu_check::exit_code();
}

}  // namespace
}  // namespace bitalloc

int main() { return bitalloc::run(); }
