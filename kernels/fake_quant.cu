#include "kernels/cuda_kernels.h"
#include "kernels/cuda_launch.cuh"

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

// 16 bytes a thread; the 4 (float32) or 2 (bfloat16) neighbouring threads of a block of 16 find its
// maximum together. Wants head_dim % 16 == 0 and rows at multiples of 16 bytes.
template <Rounding kRounding, typename Element>
__global__ void __launch_bounds__(kThreads)
    fake_quantize_pieces(Quantizer quantizer, const Element* in, Element* out, Tensor tensor) {
  constexpr int kPiece = kPieceBytes / sizeof(Element);
  constexpr int kThreadsPerBlock16 = kNvfp4BlockSize / kPiece;
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
    uint32_t largest = 0;
    if constexpr (kNeedsBlockMax<kRounding>) {
      for (int i = 0; i < kPiece; ++i) {
        largest = max(largest, magnitude_bits(load_element(data.elements[i])));
      }
      for (int other = 1; other < kThreadsPerBlock16; other *= 2) {
        largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, other));
      }
    }
    const float bmax = float_from_bits(largest);
    for (int i = 0; i < kPiece; ++i) {
      const float value = load_element(data.elements[i]);
      store_element(fake_quantize_in_block<kRounding>(quantizer, bmax, value), data.elements[i]);
    }
    if (inside) *reinterpret_cast<uint4*>(out + row * tensor.out_stride + offset) = data.bytes;
  }
}

// Any shape and alignment: one thread a block of 16 or a row's shorter last block.
template <Rounding kRounding, typename Element>
__global__ void __launch_bounds__(kThreads)
    fake_quantize_blocks(Quantizer quantizer, const Element* in, Element* out, Tensor tensor) {
  const int64_t blocks_per_row = (tensor.head_dim + kNvfp4BlockSize - 1) / kNvfp4BlockSize;
  const int64_t blocks = tensor.rows * blocks_per_row;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < blocks; i += step) {
    const int64_t row = i / blocks_per_row;
    const int64_t begin = (i - row * blocks_per_row) * kNvfp4BlockSize;
    const int64_t left = tensor.head_dim - begin;
    const int count = left < kNvfp4BlockSize ? static_cast<int>(left) : kNvfp4BlockSize;
    const Element* from = in + row * tensor.in_stride + begin;
    Element* to = out + row * tensor.out_stride + begin;
    float values[kNvfp4BlockSize];
    for (int k = 0; k < kNvfp4BlockSize; ++k) values[k] = k < count ? load_element(from[k]) : 0.0f;
    const float bmax = block_max(values, kNvfp4BlockSize);
    for (int k = 0; k < kNvfp4BlockSize; ++k) {
      if (k >= count) break;
      store_element(fake_quantize_in_block<kRounding>(quantizer, bmax, values[k]), to[k]);
    }
  }
}

template <typename Element>
bool fits_pieces(const Element* in, const Element* out, const Tensor& tensor) {
  constexpr int64_t kPiece = kPieceBytes / sizeof(Element);
  return tensor.head_dim % kNvfp4BlockSize == 0 && tensor.in_stride % kPiece == 0 &&
         tensor.out_stride % kPiece == 0 && reinterpret_cast<uintptr_t>(in) % kPieceBytes == 0 &&
         reinterpret_cast<uintptr_t>(out) % kPieceBytes == 0;
}

template <Rounding kRounding, typename Element>
Status launch(const Quantizer& quantizer, const Element* in, Element* out, const Tensor& tensor,
              cudaStream_t stream) {
  if (fits_pieces(in, out, tensor)) {
    const int64_t pieces = tensor.rows * tensor.head_dim * sizeof(Element) / kPieceBytes;
    fake_quantize_pieces<kRounding>
        <<<grid_blocks(pieces, kThreads), kThreads, 0, stream>>>(quantizer, in, out, tensor);
  } else {
    const int64_t blocks =
        tensor.rows * ((tensor.head_dim + kNvfp4BlockSize - 1) / kNvfp4BlockSize);
    fake_quantize_blocks<kRounding>
        <<<grid_blocks(blocks, kThreads), kThreads, 0, stream>>>(quantizer, in, out, tensor);
  }
  return launch_status("fake_quantize");
}

template <typename Element>
Status fake_quantize(const Quantizer& quantizer, const Element* in, Element* out, Tensor tensor,
                     cudaStream_t stream) {
  if (tensor.rows <= 0 || tensor.head_dim <= 0) return {};
  const bool adjoin = tensor.in_stride == tensor.head_dim && tensor.out_stride == tensor.head_dim;
  if (adjoin &&
      tensor.head_dim % kNvfp4BlockSize == 0) {  // one long row: no division by its length
    const int64_t count = tensor.rows * tensor.head_dim;
    tensor = Tensor{count, count, 1, count};
  }
  switch (quantizer.rounding) {
    case Rounding::kBf16:
      return launch<Rounding::kBf16>(quantizer, in, out, tensor, stream);
    case Rounding::kFp8E4m3:
      return launch<Rounding::kFp8E4m3>(quantizer, in, out, tensor, stream);
    case Rounding::kNvfp4Served:
      return launch<Rounding::kNvfp4Served>(quantizer, in, out, tensor, stream);
    case Rounding::kNvfp4Modelopt:
      return launch<Rounding::kNvfp4Modelopt>(quantizer, in, out, tensor, stream);
  }
  return internal_error("a quantizer without a rounding");
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

Status absolute_max_cuda(const float* values, int64_t count, float* out, cudaStream_t stream) {
  return absolute_max(values, count, out, stream);
}

Status absolute_max_cuda(const Bfloat16* values, int64_t count, float* out, cudaStream_t stream) {
  return absolute_max(values, count, out, stream);
}

}  // namespace bitalloc
