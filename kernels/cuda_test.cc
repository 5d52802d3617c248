// The CUDA kernels against the CPU's: fake quantization and maxima bit for bit, KL to 1e-6.
#include "kernels/cuda_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/fake_quant.h"
#include "kernels/formats/variants.h"
#include "kernels/gpu_check.h"
#include "kernels/kl.h"

namespace bitalloc {
namespace {

using gpu_check::expect;
using gpu_check::expect_cuda;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Device memory with a copy of a vector in it.
template <typename Value>
class DeviceVector {
 public:
  explicit DeviceVector(const std::vector<Value>& values) : count_(values.size()) {
    expect_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "cudaMalloc");
    expect_cuda(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "copy in");
  }
  ~DeviceVector() { cudaFree(data_); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  Value* data() { return data_; }
  std::vector<Value> get() const {
    std::vector<Value> values(count_);
    expect_cuda(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), "copy out");
    return values;
  }

 private:
  size_t bytes() const { return std::max<size_t>(1, count_) * sizeof(Value); }

  size_t count_;
  Value* data_ = nullptr;
};

void expect_ok(const Status& status) {
  expect(status.ok(), status.ok() ? "" : status.error().message);
}

// Those that a GPU computes to the bit as a CPU does.
std::vector<std::string> exact_variants() {
  std::vector<std::string> names = every_variant();
  names.erase(std::find(names.begin(), names.end(), "nvfp4[encoding=fast]"));
  return names;
}

float value_of(float value) { return value; }
float value_of(Bfloat16 value) { return bf16_decode(value); }
void assign(float value, float& to) { to = value; }
void assign(float value, Bfloat16& to) { to = bf16_encode(value); }

template <typename Element>
bool same(Element a, Element b) {
  const float x = value_of(a);
  const float y = value_of(b);
  return (std::isnan(x) && std::isnan(y)) || float_bits(x) == float_bits(y);
}

// Values of all magnitudes, among them zeros, ties of the grids, infinities and, rarely, NaN.
std::vector<float> mixed_values(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  float block_scale = 1;
  for (int64_t i = 0; i < count; ++i) {
    if (i % 16 == 0) block_scale = std::ldexp(1.0f, static_cast<int>(generator() % 40) - 25);
    values[i] = normal(generator) * block_scale;
    const uint32_t kind = generator() % 200;
    if (kind < 20) values[i] = 0.25f * static_cast<float>(generator() % 25) * block_scale;
    if (kind == 20) values[i] = -0.0f;
    if (kind == 21 && generator() % 10 == 0) values[i] = kInfinity;
    if (kind == 22 && generator() % 10 == 0) values[i] = kNan;
    if (kind == 23 && generator() % 4 == 0) values[i] = std::ldexp(normal(generator), -140);
  }
  return values;
}

struct Layout {
  int64_t rows, head_dim, in_stride, out_stride, in_offset;
};

template <typename Element>
void check_fake_quantize(const std::string& name, const Layout& layout, uint32_t seed) {
  const int64_t in_count = layout.in_offset + layout.rows * layout.in_stride;
  std::vector<Element> in(in_count);
  const auto values = mixed_values(in_count, seed);
  for (int64_t i = 0; i < in_count; ++i) assign(values[i], in[i]);
  std::vector<Element> expected(layout.rows * layout.out_stride);
  for (auto& value : expected) assign(-7, value);
  DeviceVector<Element> device_in(in);
  DeviceVector<Element> device_out(expected);
  const Quantizer quantizer = make_quantizer(*parse_format(name), 3.7f);
  fake_quantize_cpu(quantizer, in.data() + layout.in_offset, layout.in_stride, expected.data(),
                    layout.out_stride, layout.rows, layout.head_dim);
  expect_ok(fake_quantize_cuda(quantizer, device_in.data() + layout.in_offset, layout.in_stride,
                               device_out.data(), layout.out_stride, layout.rows, layout.head_dim,
                               nullptr));
  const auto actual = device_out.get();
  for (size_t i = 0; i < expected.size(); ++i) {
    expect(same(actual[i], expected[i]), name + ", head_dim " + std::to_string(layout.head_dim) +
                                             ", element " + std::to_string(i) + ": GPU " +
                                             std::to_string(value_of(actual[i])) + ", CPU " +
                                             std::to_string(value_of(expected[i])));
  }
}

void check_layouts() {
  const Layout layouts[] = {
      {64, 64, 64, 64, 0}, {33, 128, 128, 128, 0},  {7, 64, 192, 64, 0}, {7, 80, 96, 112, 0},
      {5, 20, 20, 20, 0},  {5, 33, 40, 35, 0},      {9, 64, 64, 64, 1},  {3, 7, 9, 7, 0},
      {1, 1, 1, 1, 0},     {100003, 16, 16, 16, 0}, {2, 64, 65, 64, 0},
  };
  uint32_t seed = 1;
  for (const std::string& name : exact_variants()) {
    for (const Layout& layout : layouts) {
      check_fake_quantize<float>(name, layout, ++seed);
      check_fake_quantize<Bfloat16>(name, layout, ++seed);
    }
  }
}

// The approximate reciprocals of a GPU move ties: few codes may differ.
void check_approximate() {
  const auto in = mixed_values(1 << 20, 11);
  std::vector<float> expected(in.size());
  const Quantizer quantizer = make_quantizer(*parse_format("nvfp4[encoding=fast]"), 448);
  fake_quantize_cpu(quantizer, in.data(), 64, expected.data(), 64, 1 << 14, 64);
  DeviceVector<float> device(in);
  expect_ok(
      fake_quantize_cuda(quantizer, device.data(), 64, device.data(), 64, 1 << 14, 64, nullptr));
  const auto actual = device.get();
  int64_t differing = 0;
  for (size_t i = 0; i < in.size(); ++i) differing += same(actual[i], expected[i]) ? 0 : 1;
  std::printf("nvfp4[encoding=fast]: %ld of %zu values differ from the CPU's\n",
              static_cast<long>(differing), in.size());
  expect(differing <= static_cast<int64_t>(in.size()) / 1000, "nvfp4[encoding=fast]");
}

void check_hadamard() {
  for (const int64_t n : {1, 2, 32, 64, 128, 1024}) {
    auto expected = mixed_values(300 * n, static_cast<uint32_t>(n));
    DeviceVector<float> device(expected);
    hadamard_cpu(expected.data(), 300, n);
    expect_ok(hadamard_cuda(device.data(), 300, n, nullptr));
    const auto actual = device.get();
    for (size_t i = 0; i < actual.size(); ++i) {
      expect(same(actual[i], expected[i]), "hadamard of " + std::to_string(n));
    }
  }
}

// Every bfloat16 value in a block of its own, so that no other decides its scale.
void check_every_bf16() {
  std::vector<Bfloat16> in(65536 * 16);
  for (uint32_t bits = 0; bits < 65536; ++bits) in[bits * 16].bits = static_cast<uint16_t>(bits);
  for (const std::string& name : exact_variants()) {
    const Quantizer quantizer = make_quantizer(*parse_format(name), 3.7f);
    std::vector<Bfloat16> expected(in.size());
    fake_quantize_cpu(quantizer, in.data(), 16, expected.data(), 16, 65536, 16);
    DeviceVector<Bfloat16> device(in);
    expect_ok(fake_quantize_cuda(quantizer, device.data(), 16, device.data(), 16, 65536, 16,
                                 nullptr));  // in place
    const auto actual = device.get();
    for (size_t i = 0; i < in.size(); ++i) {
      expect(same(actual[i], expected[i]), name + ", bfloat16 " + std::to_string(i / 16));
    }
  }
}

float absolute_max_on_gpu(const std::vector<float>& values) {
  DeviceVector<float> device(values);
  DeviceVector<float> result(std::vector<float>{0.0f});
  expect_ok(absolute_max_cuda(device.data(), static_cast<int64_t>(values.size()), result.data(),
                              nullptr));
  return result.get()[0];
}

void check_absolute_max() {
  for (int64_t count : {1, 31, 1000, 3000001}) {
    std::vector<float> values(count, 0.25f);
    values[count / 2] = -2.5f;
    expect(absolute_max_on_gpu(values) == 2.5f, "absolute_max of finite values");
    values[count - 1] = kInfinity;
    expect(absolute_max_on_gpu(values) == kInfinity, "absolute_max shows infinity");
    values[count / 3] = kNan;
    if (count > 1) expect(std::isnan(absolute_max_on_gpu(values)), "absolute_max shows NaN");
  }
}

struct KlInput {
  int64_t reference_rows, candidates, vocab, stride;
  float spread;
  std::vector<float> a, b;
};

KlInput make_kl_input(int64_t reference_rows, int64_t candidates, int64_t vocab, int64_t stride,
                      float spread) {
  KlInput input{reference_rows, candidates, vocab, stride, spread, {}, {}};
  std::mt19937 generator(static_cast<uint32_t>(vocab));
  std::normal_distribution<float> normal;
  input.a.resize(reference_rows * stride);
  for (float& x : input.a) x = normal(generator) * 3;
  input.b.resize(candidates * reference_rows * stride);
  for (size_t i = 0; i < input.b.size(); ++i) {
    input.b[i] = input.a[i % input.a.size()] + spread * normal(generator);
  }
  return input;
}

std::vector<double> kl_on_cpu(const KlInput& input) {
  const int64_t rows = input.reference_rows * input.candidates;
  std::vector<double> log_sum_exp(input.reference_rows), kl(rows);
  log_sum_exp_cpu(input.a.data(), input.reference_rows, input.vocab, input.stride,
                  log_sum_exp.data());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t partner = row % input.reference_rows;
    kl_rows_cpu(input.a.data() + partner * input.stride, input.b.data() + row * input.stride, 1,
                input.vocab, input.stride, input.stride, &log_sum_exp[partner], &kl[row]);
  }
  return kl;
}

std::vector<double> kl_on_gpu(const KlInput& input) {
  const int64_t rows = input.reference_rows * input.candidates;
  DeviceVector<float> a(input.a), b(input.b);
  DeviceVector<double> log_sum_exp((std::vector<double>(input.reference_rows)));
  DeviceVector<double> kl((std::vector<double>(rows)));
  expect_ok(log_sum_exp_cuda(a.data(), input.reference_rows, input.vocab, input.stride,
                             log_sum_exp.data(), nullptr));
  expect_ok(kl_rows_cuda(a.data(), b.data(), input.reference_rows, rows, input.vocab, input.stride,
                         input.stride, log_sum_exp.data(), kl.data(), nullptr));
  return kl.get();
}

void check_kl() {
  for (int64_t vocab : {1, 5, 511, 2048, 4099, 49152, 151936}) {
    for (float spread : {4e-5f, 1e-2f, 0.5f, 20.0f}) {
      const KlInput input = make_kl_input(3, 2, vocab, vocab + (vocab % 2) * 3, spread);
      const auto cpu = kl_on_cpu(input);
      const auto gpu = kl_on_gpu(input);
      expect(kl_on_gpu(input) == gpu, "KL is the same every time");
      for (size_t row = 0; row < cpu.size(); ++row) {
        expect(std::abs(gpu[row] - cpu[row]) <= 2e-5 * cpu[row] + 1e-18,
               "KL of vocabulary " + std::to_string(vocab) + ", spread " + std::to_string(spread) +
                   ": GPU " + std::to_string(gpu[row]) + ", CPU " + std::to_string(cpu[row]));
      }
    }
  }
}

void check_kl_special_values() {
  for (int64_t vocab : {40, 1003}) {
    for (float bad : {kNan, kInfinity}) {
      KlInput input = make_kl_input(1, 1, vocab, vocab, 0.1f);
      input.b[vocab / 2] = bad;
      expect(std::isnan(kl_on_gpu(input)[0]), "KL shows NaN and +inf");
    }
    KlInput input = make_kl_input(1, 1, vocab, vocab, 0.1f);
    input.a[3] = input.b[3] = -kInfinity;
    input.a[5] = -kInfinity;
    const double cpu = kl_on_cpu(input)[0];
    expect(std::abs(kl_on_gpu(input)[0] - cpu) <= 2e-5 * cpu, "KL takes limits at -inf");
    input.b[7] = -kInfinity;
    expect(kl_on_gpu(input)[0] == static_cast<double>(kInfinity), "KL is +inf where q is 0");
  }
}

int run() {
  if (!gpu_check::device_found()) return gpu_check::kSkipped;
  check_layouts();
  check_every_bf16();
  check_approximate();
  check_hadamard();
  check_absolute_max();
  check_kl();
  check_kl_special_values();
  expect_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return gpu_check::exit_code();
}

}  // namespace
}  // namespace bitalloc

int main() { return bitalloc::run(); }
