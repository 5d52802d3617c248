// Speed of the kernels: GB/s of fake quantization and ns an element of KL, on one CPU thread, and
// on a GPU, where there is one, as a share of what a device-to-device copy moves.
//
//   kernels_bench [seconds per line, default 0.3]
//   kernels_bench formats [seconds per line]       every format, from and to memory on all cores
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/fake_quant.h"
#include "kernels/formats/variants.h"
#include "kernels/kl.h"

#if defined(BITALLOC_HAVE_CUDA)
#include "kernels/cuda_kernels.h"
#endif

namespace bitalloc {
namespace {

constexpr int64_t kHeadDim = 128;
constexpr int64_t kVocab = 151936;
constexpr int64_t kBandwidthBytes = int64_t{1} << 27;  // beyond every cache

const std::vector<std::string> kSome = {"bf16", "fp8_e4m3", "nvfp4", "nvfp4[encoding=modelopt]"};

std::vector<float> random_values(int64_t count, uint32_t seed, float scale) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<Bfloat16> to_bf16(const std::vector<float>& values) {
  std::vector<Bfloat16> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), bf16_encode);
  return halves;
}

// Best seconds of a run, tried for `budget` seconds.
double best_seconds(double budget, const std::function<double()>& timed_run) {
  timed_run();
  double best = 1e9, spent = 0;
  while (spent < budget) {
    const double seconds = timed_run();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

double on_cpu(double budget, const std::function<void()>& run) {
  return best_seconds(budget, [&] {
    const auto start = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
}

// Runs `work(begin, end)` on `threads` threads, each a share of `rows`.
void on_threads(int threads, int64_t rows, const std::function<void(int64_t, int64_t)>& work) {
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back([&, i] { work(rows * i / threads, rows * (i + 1) / threads); });
  }
  work(0, rows / threads);
  for (std::thread& other : others) other.join();
}

// Bytes a second that a copy reads and writes, from and to memory, on all cores.
double memory_bandwidth(double budget, int threads) {
  const std::vector<char> from(kBandwidthBytes, 1);
  std::vector<char> to(kBandwidthBytes, 2);
  const double seconds = on_cpu(budget, [&] {
    on_threads(threads, kBandwidthBytes, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
  });
  return 2.0 * kBandwidthBytes / seconds;
}

// Every format from and to memory on all cores, as a share of what a copy moves.
template <typename Element>
void bench_formats(double budget, const char* type, const std::vector<Element>& in, int threads,
                   double bandwidth) {
  std::vector<Element> out(in.size());
  const auto rows = static_cast<int64_t>(in.size()) / kHeadDim;
  for (const std::string& name : every_variant()) {
    const Quantizer quantizer = make_quantizer(*parse_format(name), 3.0f);
    const double seconds = on_cpu(budget, [&] {
      on_threads(threads, rows, [&](int64_t begin, int64_t end) {
        fake_quantize_cpu(quantizer, in.data() + begin * kHeadDim, kHeadDim,
                          out.data() + begin * kHeadDim, kHeadDim, end - begin, kHeadDim);
      });
    });
    const double speed = 2.0 * sizeof(Element) * static_cast<double>(in.size()) / seconds;
    std::printf("cpu  %-36s %-8s %7.2f GB/s  %5.1f %% of a copy\n", name.c_str(), type,
                speed * 1e-9, 100 * speed / bandwidth);
  }
}

void bench_all_formats(double budget) {
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const double bandwidth = memory_bandwidth(budget, threads);
  std::printf("cpu  copy on %d threads %.1f GB/s, read and written\n", threads, bandwidth * 1e-9);
  const auto values = random_values(kBandwidthBytes / 4, 1, 1.0f);
  bench_formats(budget, "float32", values, threads, bandwidth);
  bench_formats(budget, "bfloat16", to_bf16(values), threads, bandwidth);
}

template <typename Element>
void bench_fake_quantize_cpu(double budget, const char* type, const std::vector<Element>& in) {
  std::vector<Element> out(in.size());
  const auto rows = static_cast<int64_t>(in.size()) / kHeadDim;
  for (const std::string& name : kSome) {
    const Quantizer quantizer = make_quantizer(*parse_format(name), 448);
    const double seconds = on_cpu(budget, [&] {
      fake_quantize_cpu(quantizer, in.data(), kHeadDim, out.data(), kHeadDim, rows, kHeadDim);
    });
    const auto count = static_cast<double>(in.size());
    std::printf("cpu  fake_quantize %-25s %-8s %7.2f GB/s  %6.3f ns/element\n", name.c_str(), type,
                2 * sizeof(Element) * count / seconds * 1e-9, seconds / count * 1e9);
  }
}

void bench_cpu(double budget) {
  const auto values = random_values(1 << 18, 1, 1.0f);
  bench_fake_quantize_cpu(budget, "float32", values);
  bench_fake_quantize_cpu(budget, "bfloat16", to_bf16(values));
  const auto a = random_values(kVocab, 2, 3.0f);
  for (const float spread : {0.01f, 1.0f}) {
    auto b = random_values(kVocab, 3, spread);
    for (int64_t i = 0; i < kVocab; ++i) b[i] += a[i];
    double log_sum_exp = 0, kl = 0;
    log_sum_exp_cpu(a.data(), 1, kVocab, kVocab, &log_sum_exp);
    const double seconds = on_cpu(budget, [&] {
      kl_rows_cpu(a.data(), b.data(), 1, kVocab, kVocab, kVocab, &log_sum_exp, &kl);
    });
    std::printf("cpu  kl_rows vocabulary %lld, logits ±%-4g                %6.3f ns/element\n",
                static_cast<long long>(kVocab), static_cast<double>(spread),
                seconds / kVocab * 1e9);
  }
}

#if defined(BITALLOC_HAVE_CUDA)

void check(cudaError_t error, const char* what) {
  BA_CHECK(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(error));
}

void check(const Status& status) { BA_CHECK(status.ok(), status.error().message); }

template <typename Value>
Value* on_device(const std::vector<Value>& values) {
  void* data = nullptr;
  check(cudaMalloc(&data, values.size() * sizeof(Value)), "cudaMalloc");
  check(cudaMemcpy(data, values.data(), values.size() * sizeof(Value), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  return static_cast<Value*>(data);
}

// Best seconds between two events around `run`.
double on_gpu(double budget, const std::function<void()>& run) {
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "cudaEventCreate");
  check(cudaEventCreate(&stop), "cudaEventCreate");
  const double seconds = best_seconds(budget, [&] {
    float ms = 0;
    check(cudaEventRecord(start, nullptr), "cudaEventRecord");
    run();
    check(cudaEventRecord(stop, nullptr), "cudaEventRecord");
    check(cudaEventSynchronize(stop), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e-3;
  });
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return seconds;
}

void print_gpu(const std::string& what, double bytes, double seconds, double roof) {
  std::printf("gpu  %-45s %8.1f GB/s  %5.1f %% of the copy's\n", what.c_str(),
              bytes / seconds * 1e-9, 100 * bytes / seconds / roof);
}

// Bytes a second that a device-to-device copy reads and writes: the roof of all that follows.
double copy_roof(double budget) {
  const size_t bytes = size_t{1} << 30;
  void *from = nullptr, *to = nullptr;
  check(cudaMalloc(&from, bytes), "cudaMalloc");
  check(cudaMalloc(&to, bytes), "cudaMalloc");
  const double seconds = on_gpu(budget, [&] {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr), "copy");
  });
  cudaFree(from);
  cudaFree(to);
  const double roof = 2 * static_cast<double>(bytes) / seconds;
  std::printf("gpu  device-to-device copy                         %8.1f GB/s\n", roof * 1e-9);
  return roof;
}

template <typename Element>
void bench_fake_quantize_gpu(double budget, const char* type, const std::vector<Element>& in,
                             double roof) {
  Element* from = on_device(in);
  Element* to = on_device(in);
  const auto rows = static_cast<int64_t>(in.size()) / kHeadDim;
  for (const std::string& name : kSome) {
    const Quantizer quantizer = make_quantizer(*parse_format(name), 448);
    const double seconds = on_gpu(budget, [&] {
      check(fake_quantize_cuda(quantizer, from, kHeadDim, to, kHeadDim, rows, kHeadDim, nullptr));
    });
    print_gpu(std::string("fake_quantize ") + name + " " + type,
              2.0 * sizeof(Element) * static_cast<double>(in.size()), seconds, roof);
  }
  cudaFree(from);
  cudaFree(to);
}

void bench_kl_gpu(double budget, double roof) {
  const int64_t rows = 512;
  const auto a = random_values(kVocab * rows, 2, 3.0f);
  auto b = a;
  for (float& value : b) value *= 1.001f;
  float* reference = on_device(a);
  float* trial = on_device(b);
  double* log_sum_exp = on_device(std::vector<double>(rows));
  double* kl = on_device(std::vector<double>(rows));
  check(log_sum_exp_cuda(reference, rows, kVocab, kVocab, log_sum_exp, nullptr));
  const double seconds = on_gpu(budget, [&] {
    check(kl_rows_cuda(reference, trial, rows, rows, kVocab, kVocab, kVocab, log_sum_exp, kl,
                       nullptr));
  });
  // The trial is read twice: for its log-sum-exp and for the sums.
  print_gpu("kl_rows, 512 rows", 3.0 * sizeof(float) * static_cast<double>(a.size()), seconds,
            roof);
  for (void* data : {static_cast<void*>(reference), static_cast<void*>(trial),
                     static_cast<void*>(log_sum_exp), static_cast<void*>(kl)}) {
    cudaFree(data);
  }
}

void bench_gpu(double budget) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("gpu  no CUDA device: nothing measured\n");
    return;
  }
  const double roof = copy_roof(budget);
  const auto values = random_values(1 << 26, 1, 1.0f);
  bench_fake_quantize_gpu(budget, "float32", values, roof);
  bench_fake_quantize_gpu(budget, "bfloat16", to_bf16(values), roof);
  bench_kl_gpu(budget, roof);
}

#else

void bench_gpu(double) { std::printf("gpu  built without CUDA: nothing measured\n"); }

#endif

}  // namespace
}  // namespace bitalloc

int main(int argc, char** argv) {
  const bool formats = argc > 1 && std::string(argv[1]) == "formats";
  const int next = formats ? 2 : 1;
  const double budget = argc > next ? std::atof(argv[next]) : 0.3;
  if (formats) {
    bitalloc::bench_all_formats(budget);
    return 0;
  }
  bitalloc::bench_cpu(budget);
  bitalloc::bench_gpu(budget);
  return 0;
}
