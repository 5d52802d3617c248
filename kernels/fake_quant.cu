#include "kernels/cuda_group.cuh"
#include "kernels/cuda_kernels.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/formats/hadamard.h"

namespace bitalloc {
namespace {

constexpr int kThreads = 256;
constexpr int kPieceBytes = 16;  // what one thread moves at once

struct Tensor {
  int64_t in_stride;
  int64_t out_stride;
  int64_t rows;
  int64_t head_dim;
};

BA_HOST_DEVICE float load_element(float value) { return value; }
BA_HOST_DEVICE float load_element(Bfloat16 value) { return bf16_decode(value); }
BA_HOST_DEVICE void store_element(float value, float& out) { out = value; }
BA_HOST_DEVICE void store_element(float value, Bfloat16& out) { out = bf16_encode(value); }

// 16 bytes a thread; the threads of a group of kGroup meet in shuffles. Wants head_dim a multiple
// of kGroup and rows at multiples of 16 bytes.
template <typename Numerics, int kGroup, typename Element>
__global__ void __launch_bounds__(kThreads)
    fake_quantize_pieces(Numerics numerics, const Element* in, Element* out, Tensor tensor) {
  constexpr int kPiece = kPieceBytes / sizeof(Element);
  const int64_t pieces_per_row = tensor.head_dim / kPiece;
  const int64_t pieces = tensor.rows * pieces_per_row;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  // `base` is the same for the whole thread block: all threads meet at the shuffles.
  for (int64_t base = int64_t{blockIdx.x} * kThreads; base < pieces; base += step) {
    const int64_t piece = base + threadIdx.x;
    const bool inside = piece < pieces;
    const int64_t row = tensor.rows == 1 || !inside ? 0 : piece / pieces_per_row;
    const int64_t offset = (piece - row * pieces_per_row) * kPiece;
    union {
      uint4 bytes;
      Element elements[kPiece];
    } data;
    data.bytes = make_uint4(0, 0, 0, 0);
    if (inside) data.bytes = *reinterpret_cast<const uint4*>(in + row * tensor.in_stride + offset);
    PieceGroup<kPiece, kGroup / kPiece> group;
    for (int i = 0; i < kPiece; ++i) group.values[i] = load_element(data.elements[i]);
    numerics.fake_quantize(group);
    for (int i = 0; i < kPiece; ++i) store_element(group.values[i], data.elements[i]);
    if (inside) *reinterpret_cast<uint4*>(out + row * tensor.out_stride + offset) = data.bytes;
  }
}

// Any group up to kLongestGroup, any shape and alignment: a warp a group or a row's shorter last
// one.
template <typename Numerics, typename Element>
__global__ void __launch_bounds__(kThreads)
    fake_quantize_warps(Numerics numerics, int64_t group, const Element* in, Element* out,
                        Tensor tensor) {
  constexpr int kWarps = kThreads / WarpGroup::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % WarpGroup::kWarp;
  const int64_t groups_per_row = (tensor.head_dim + group - 1) / group;
  const int64_t groups = tensor.rows * groups_per_row;
  const int64_t first = int64_t{blockIdx.x} * kWarps + threadIdx.x / WarpGroup::kWarp;
  for (int64_t i = first; i < groups; i += int64_t{gridDim.x} * kWarps) {
    const int64_t row = i / groups_per_row;
    const int64_t begin = (i - row * groups_per_row) * group;
    const int64_t left = tensor.head_dim - begin;
    const Element* from = in + row * tensor.in_stride + begin;
    Element* to = out + row * tensor.out_stride + begin;
    WarpGroup values(static_cast<int>(left < group ? left : group), lane);
    for (int k = 0; values.holds(k); ++k) {
      values.values[k] = load_element(from[lane + k * WarpGroup::kWarp]);
    }
    numerics.fake_quantize(values);
    for (int k = 0; values.holds(k); ++k) {
      store_element(values.values[k], to[lane + k * WarpGroup::kWarp]);
    }
  }
}

template <typename Element>
bool fits_pieces(const Element* in, const Element* out, const Tensor& tensor, int64_t group) {
  constexpr int64_t kPiece = kPieceBytes / sizeof(Element);
  return tensor.head_dim % group == 0 && tensor.in_stride % kPiece == 0 &&
         tensor.out_stride % kPiece == 0 && reinterpret_cast<uintptr_t>(in) % kPieceBytes == 0 &&
         reinterpret_cast<uintptr_t>(out) % kPieceBytes == 0;
}

template <typename Element>
struct Launch {
  const Quantizer& quantizer;
  const Element* in;
  Element* out;
  Tensor tensor;
  cudaStream_t stream;

  template <typename Numerics>
  Status operator()(const Numerics& numerics) const {
    const int64_t asked = quantizer.group > 0 ? quantizer.group : tensor.head_dim;
    const int64_t group = Numerics::kGroup > 0 ? Numerics::kGroup : asked;
    if (!fits_pieces(in, out, tensor, group)) return warps(numerics, group);
    if constexpr (Numerics::kGroup > 0) {
      return pieces<Numerics::kGroup>(numerics);
    } else {
      if (group == 32) return pieces<32>(numerics);
      if (group == 64) return pieces<64>(numerics);
      if (group == 128) return pieces<128>(numerics);
      return warps(numerics, group);
    }
  }

  template <int kGroup, typename Numerics>
  Status pieces(const Numerics& numerics) const {
    Tensor whole = tensor;
    const int64_t count = tensor.rows * tensor.head_dim;
    if (tensor.in_stride == tensor.head_dim && tensor.out_stride == tensor.head_dim) {
      whole = Tensor{count, count, 1, count};  // one long row: no division by its length
    }
    const int64_t threads = count * static_cast<int64_t>(sizeof(Element)) / kPieceBytes;
    fake_quantize_pieces<Numerics, kGroup>
        <<<grid_blocks(threads, kThreads), kThreads, 0, stream>>>(numerics, in, out, whole);
    return launch_status("fake_quantize");
  }

  template <typename Numerics>
  Status warps(const Numerics& numerics, int64_t group) const {
    const int64_t groups = tensor.rows * ((tensor.head_dim + group - 1) / group);
    fake_quantize_warps<<<grid_blocks(groups * WarpGroup::kWarp, kThreads), kThreads, 0, stream>>>(
        numerics, group, in, out, tensor);
    return launch_status("fake_quantize");
  }
};

template <typename Element>
Status fake_quantize(const Quantizer& quantizer, const Element* in, Element* out, Tensor tensor,
                     cudaStream_t stream) {
  if (tensor.rows <= 0 || tensor.head_dim <= 0) return {};
  return visit(quantizer, Launch<Element>{quantizer, in, out, tensor, stream});
}

// A thread block a row at a time, its n elements in shared memory.
__global__ void hadamard_kernel(float* x, int64_t rows, int n, float factor) {
  extern __shared__ float row_values[];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float* own = x + row * n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) row_values[i] = own[i];
    __syncthreads();
    for (int step = 1; step < n; step *= 2) {
      for (int pair = threadIdx.x; pair < n / 2; pair += blockDim.x) {
        hadamard_butterfly(row_values, pair / step * 2 * step + pair % step, step);
      }
      __syncthreads();
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      own[i] = multiply_rounded(row_values[i], factor);
    }
    __syncthreads();
  }
}

// Magnitudes order as integers do: a maximum of integers is the same in any order, so atomics do.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    absolute_max_kernel(const Element* values, int64_t count, uint32_t* out) {
  uint32_t largest = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    largest = max(largest, magnitude_bits(load_element(values[i])));
  }
  for (int other = 16; other > 0; other /= 2) {
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, other));
  }
  if (threadIdx.x % 32 == 0) atomicMax(out, largest);
}

template <typename Element>
Status absolute_max(const Element* values, int64_t count, float* out, cudaStream_t stream) {
  if (count <= 0) return {};
  absolute_max_kernel<<<grid_blocks(count, kThreads), kThreads, 0, stream>>>(
      values, count, reinterpret_cast<uint32_t*>(out));
  return launch_status("absolute_max");
}

}  // namespace

Status fake_quantize_cuda(const Quantizer& quantizer, const float* in, int64_t in_stride,
                          float* out, int64_t out_stride, int64_t rows, int64_t head_dim,
                          cudaStream_t stream) {
  return fake_quantize(quantizer, in, out, Tensor{in_stride, out_stride, rows, head_dim}, stream);
}

Status fake_quantize_cuda(const Quantizer& quantizer, const Bfloat16* in, int64_t in_stride,
                          Bfloat16* out, int64_t out_stride, int64_t rows, int64_t head_dim,
                          cudaStream_t stream) {
  return fake_quantize(quantizer, in, out, Tensor{in_stride, out_stride, rows, head_dim}, stream);
}

Status hadamard_cuda(float* x, int64_t rows, int64_t n, cudaStream_t stream) {
  if (rows <= 0) return {};
  const int threads = n >= 64 ? static_cast<int>(n / 2) : 32;
  hadamard_kernel<<<grid_blocks(rows * threads, threads), threads, n * sizeof(float), stream>>>(
      x, rows, static_cast<int>(n), hadamard_factor(n));
  return launch_status("hadamard");
}

Status absolute_max_cuda(const float* values, int64_t count, float* out, cudaStream_t stream) {
  return absolute_max(values, count, out, stream);
}

Status absolute_max_cuda(const Bfloat16* values, int64_t count, float* out, cudaStream_t stream) {
  return absolute_max(values, count, out, stream);
}

}  // namespace bitalloc
