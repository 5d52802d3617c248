// Parameters of formats that their numerics know too. C++17, no libraries.
#pragma once

namespace bitalloc {

// What of a block decides between the two scales of nvfp4_4over6 (nvfp4_four_over_six.h).
enum class BlockError { kMse, kMae, kAbsMax };

// How the exponent of an MX block is found (mx.h).
enum class BlockExponent { kRceil, kFloor, kCeil, kEven };

// What a cache computes its integers in, and keeps scales and shifts in (int_affine.h).
enum class Arithmetic { kBf16, kFp16, kFp32 };

}  // namespace bitalloc
