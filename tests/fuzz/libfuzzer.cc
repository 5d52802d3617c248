// The driver of clang's libFuzzer: see ops/fuzz.sh.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bitalloc::fuzz::accepts({reinterpret_cast<const char*>(data), size});
  return 0;
}
