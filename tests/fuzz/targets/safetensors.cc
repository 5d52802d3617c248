// A safetensors file: header, tiling, reading every tensor as numbers.
#include "common/safetensors.h"

#include "tests/fuzz/target.h"

bool bitalloc::fuzz::accepts(std::string_view input) {
  const std::string file = file_with(input);
  const auto reader = SafetensorsReader::open_file(file);
  if (!reader.ok()) return false;
  size_t bytes = 0;
  for (const auto& [name, tensor] : (*reader)->tensors()) {
    __int128 size = dtype_size_bytes(tensor.dtype);
    for (const int64_t extent : tensor.shape) {
      size *= extent;
      if (size == 0) break;  // a further extent may be anything
    }
    BA_CHECK(size == static_cast<__int128>(tensor.bytes.size()), "size of " + name);
    bytes += tensor.bytes.size();
    const auto integers = read_integers(tensor);
    const auto floats = read_floats(tensor);
    BA_CHECK(!integers.ok() || integers->size() == static_cast<size_t>(tensor.numel()), name);
    BA_CHECK(!floats.ok() || floats->size() == static_cast<size_t>(tensor.numel()), name);
    BA_CHECK(!(integers.ok() && floats.ok()), "one dtype is both");
  }
  BA_CHECK(bytes < input.size(), "more bytes than the file has");
  return true;
}
