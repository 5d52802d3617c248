// Reading and writing safetensors files: an 8-byte little-endian header length, a JSON header
// {name: {dtype, shape, data_offsets}}, then the bytes of the tensors.
// Format: https://github.com/huggingface/safetensors (README, "Format").
//
// The reader maps files into memory and checks everything the header claims before it hands out a
// byte. Readers are immutable after `open` and may be shared by threads. Views borrow from their
// reader: they are valid as long as it lives. A file that somebody truncates while it is mapped
// ends the process (SIGBUS), as with every program that maps files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace bitalloc {

enum class Dtype { kF64, kF32, kF16, kBf16, kF8E4M3, kF8E5M2, kI64, kI32, kI16, kI8, kU8, kBool };

// The spelling of safetensors headers: "F32", "BF16", "I64", …
const char* dtype_name(Dtype dtype);
int64_t dtype_size_bytes(Dtype dtype);

// One tensor of a mapped file, row-major.
struct TensorView {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // may be unaligned for its dtype: copy before use as numbers
  std::string file;                  // file name without folder, for messages

  int64_t numel() const;
};

// "[2, 3]", for messages.
std::string shape_text(std::span<const int64_t> shape);

// The tensors of one file, or of all the shards that an index names. Errors: kNotFound when there
// is no file, kInvalidArgument naming file and tensor when a file is not what its header claims.
class SafetensorsReader {
 public:
  static Result<std::shared_ptr<const SafetensorsReader>> open_file(
      const std::filesystem::path& path);
  // `model.safetensors` in `directory`, or the shards of `model.safetensors.index.json`.
  static Result<std::shared_ptr<const SafetensorsReader>> open_model(
      const std::filesystem::path& directory);

  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  // Sorted by name.
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const TensorView* find(const std::string& name) const;  // null when there is none
  // "__metadata__" of the (first) file.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<std::filesystem::path>& files() const { return files_; }

 private:
  struct Mapping {
    void* address = nullptr;
    size_t size_bytes = 0;
  };

  SafetensorsReader() = default;
  Result<std::span<const std::byte>> map_file(const std::filesystem::path& path);
  Status add_file(const std::filesystem::path& path);

  std::vector<Mapping> mappings_;
  std::vector<std::filesystem::path> files_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Copies the elements of an integer tensor (I64, I32, I16, I8, U8 or BOOL) to int64.
// Errors: kInvalidArgument naming file and tensor for other dtypes.
Result<std::vector<int64_t>> read_integers(const TensorView& tensor);
// Copies the elements of a floating tensor (F64, F32, F16 or BF16) to float.
Result<std::vector<float>> read_floats(const TensorView& tensor);

// One tensor to write. `bytes` is borrowed until `write_safetensors` returns; its size must be
// numel × dtype size.
struct TensorToWrite {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes (or replaces) one file atomically. Tensors keep the order given. The content is put
// together in memory: meant for scales and tokens, not for models. Errors: kInvalidArgument for a
// double name or a wrong size, those of write_file_atomically.
Status write_safetensors(const std::filesystem::path& path,
                         const std::vector<TensorToWrite>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace bitalloc
