// NCCL between threads, a GPU each, and the scores of a model cut over two GPUs.
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <cmath>

#include "common/token_file.h"
#include "kernels/gpu_check.h"
#include "worker/ranks_for_test.h"
#include "worker/scorer.h"

namespace bitalloc {
namespace {

namespace fs = std::filesystem;
using gpu_check::expect;

const fs::path kSmall = fs::path(BITALLOC_SOURCE_DIR) / "tests/fixtures/small";

// body(group) on every rank at once, each with its GPU.
void on_gpus(int size, const std::function<void(Collective&)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto host = connect_gloo(store, rank, size, "127.0.0.1", std::chrono::seconds(60));
      BA_CHECK(host.ok(), host.error().message);
      auto group = connect_nccl(*store, std::move(host).value(), rank, std::chrono::seconds(60));
      BA_CHECK(group.ok(), group.error().message);
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(rank));
      body(**group);
    });
  }
}

void check_calls(Collective& group) {
  const int size = group.size();
  const double mine = group.rank() + 1;
  const auto on_gpu = at::TensorOptions().device(at::kCUDA);
  const at::Tensor sum = at::full({5, 1001}, mine, on_gpu.dtype(at::kFloat));
  group.all_reduce_sum(sum);
  expect(at::equal(sum.cpu(), at::full({5, 1001}, size * (size + 1) / 2, at::kFloat)), "sum");
  const at::Tensor largest = at::full({3}, mine, on_gpu.dtype(at::kDouble));
  group.all_reduce_max(largest);
  expect(at::equal(largest.cpu(), at::full({3}, size, at::kDouble)), "max");
  const at::Tensor all = group.all_gather(at::full({2}, mine, on_gpu.dtype(at::kDouble))).cpu();
  for (int rank = 0; rank < size; ++rank) {
    expect(at::equal(all[rank], at::full({2}, rank + 1, at::kDouble)), "gather");
  }
  expect(!group.any(false) && group.any(group.rank() == size - 1), "any");
  expect(group.broadcast("said") == "said", "broadcast");
}

std::vector<double> scores(const ScorerOptions& options) {
  const std::atomic<bool> go_on{false};
  const TokenSet batch = read_token_file(kSmall / "expected_bf16.safetensors").value();
  auto scorer = Scorer::load(kSmall / "model", options);
  BA_CHECK(scorer.ok(), scorer.error().message);
  std::vector<SiteTask> sites;
  for (int i = 0; i < 12; ++i) sites.push_back({.layer = i});
  const std::vector<Candidate> candidates = {parse_candidate("fp8_e4m3").value(),
                                             parse_candidate("nvfp4").value()};
  auto result = (*scorer)->score(batch, "batch", sites, candidates, go_on);
  BA_CHECK(result.ok(), result.error().message);
  return result->kl_sums;
}

void check_scores(ComputeDtype dtype, double tolerance, const char* what) {
  const std::vector<double> one = scores({.device = "cuda:0", .dtype = dtype});
  on_gpus(2, [&](Collective& group) {
    const std::string device = fmt::format("cuda:{}", group.rank());
    const auto two = scores({.device = device, .dtype = dtype, .group = &group});
    double worst = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      const double difference = std::abs(two[i] - one[i]) / one[i];
      if (!(difference <= worst)) worst = difference;
    }
    if (group.rank() == 0) std::printf("%s: 2 GPUs differ from 1 by %.1e\n", what, worst);
    expect(worst <= tolerance, std::string("scores in ") + what);
  });
}

int run() {
  if (!gpu_check::device_found()) return gpu_check::kSkipped;
  on_gpus(1, check_calls);
  int devices = 0;
  gpu_check::expect_cuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (devices < 2) {
    std::printf("SKIPPED: two shards need two GPUs, here is one (its calls were checked)\n");
    return gpu_check::failures() > 0 ? gpu_check::exit_code() : gpu_check::kSkipped;
  }
  on_gpus(2, check_calls);
  check_scores(ComputeDtype::kFloat32, 1e-4, "float32");
  check_scores(ComputeDtype::kBfloat16, 1e-2, "bfloat16");
  return gpu_check::exit_code();
}

}  // namespace
}  // namespace bitalloc

int main() { return bitalloc::run(); }
