#include "common/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>

#include "common/files.h"
#include "common/float_bits.h"
#include "common/json.h"

namespace bitalloc {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr size_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr int kMaxHeaderDepth = 8;
constexpr size_t kMaxRank = 16;

struct DtypeRow {
  Dtype dtype;
  const char* name;
  int64_t size_bytes;
};

constexpr std::array<DtypeRow, 12> kDtypes = {{
    {Dtype::kF64, "F64", 8},
    {Dtype::kF32, "F32", 4},
    {Dtype::kF16, "F16", 2},
    {Dtype::kBf16, "BF16", 2},
    {Dtype::kF8E4M3, "F8_E4M3", 1},
    {Dtype::kF8E5M2, "F8_E5M2", 1},
    {Dtype::kI64, "I64", 8},
    {Dtype::kI32, "I32", 4},
    {Dtype::kI16, "I16", 2},
    {Dtype::kI8, "I8", 1},
    {Dtype::kU8, "U8", 1},
    {Dtype::kBool, "BOOL", 1},
}};

const DtypeRow& row_of(Dtype dtype) {
  for (const auto& row : kDtypes) {
    if (row.dtype == dtype) return row;
  }
  BA_CHECK(false, "dtype without a row");
}

Result<Json> parse_object(std::string_view text, const std::string& what) {
  BA_ASSIGN_OR_RETURN(Json parsed, parse_json(text, what, kMaxHeaderDepth));
  if (!parsed.is_object()) return invalid_argument(what + " is not a JSON object", what);
  return parsed;
}

Error bad_tensor(const std::string& file, const std::string& tensor, const std::string& what) {
  return invalid_argument(fmt::format("{}: tensor '{}': {}", file, tensor, what), file,
                          "the file is damaged; fetch it again");
}

bool is_count(const Json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

// numel × size of dtype, or nothing when it does not fit 63 bits.
std::optional<int64_t> checked_size_bytes(const std::vector<int64_t>& shape, Dtype dtype) {
  int64_t size = dtype_size_bytes(dtype);
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(size, extent, &size)) return std::nullopt;
  }
  return size;
}

Result<TensorView> parse_tensor(const std::string& name, const Json& entry, const std::string& file,
                                std::span<const std::byte> data) {
  TensorView view;
  view.name = name;
  view.file = file;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    return bad_tensor(file, name, "the header lacks dtype, shape or data_offsets");
  }
  const std::string dtype = entry["dtype"];
  const auto* row = std::find_if(kDtypes.begin(), kDtypes.end(),
                                 [&](const DtypeRow& r) { return dtype == r.name; });
  if (row == kDtypes.end()) return bad_tensor(file, name, fmt::format("unknown dtype '{}'", dtype));
  view.dtype = row->dtype;
  if (entry["shape"].size() > kMaxRank) return bad_tensor(file, name, "too many dimensions");
  for (const auto& extent : entry["shape"]) {
    if (!is_count(extent)) return bad_tensor(file, name, "the shape is not made of counts");
    view.shape.push_back(extent.get<int64_t>());
  }
  const Json& begin = entry["data_offsets"][0];
  const Json& end = entry["data_offsets"][1];
  if (!is_count(begin) || !is_count(end) || begin.get<uint64_t>() > end.get<uint64_t>()) {
    return bad_tensor(file, name, "data_offsets are not a range");
  }
  if (end.get<uint64_t>() > data.size()) {
    return bad_tensor(file, name,
                      fmt::format("ends at byte {} of the data, but the file has {}: truncated",
                                  end.get<uint64_t>(), data.size()));
  }
  view.bytes = data.subspan(begin.get<uint64_t>(), end.get<uint64_t>() - begin.get<uint64_t>());
  const auto expected = checked_size_bytes(view.shape, view.dtype);
  if (!expected || static_cast<uint64_t>(*expected) != view.bytes.size()) {
    return bad_tensor(
        file, name,
        fmt::format("{} {} needs {} bytes, data_offsets span {}", dtype, shape_text(view.shape),
                    expected ? *expected : -1, view.bytes.size()));
  }
  return view;
}

// The format demands that tensors tile the data without gap or overlap.
Status check_tiling(const std::vector<TensorView>& views, std::span<const std::byte> data,
                    const std::string& file) {
  std::vector<const TensorView*> order;
  for (const auto& view : views) order.push_back(&view);
  std::stable_sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    return std::pair(a->bytes.data(), a->bytes.size()) <
           std::pair(b->bytes.data(), b->bytes.size());
  });
  const std::byte* at = data.data();
  for (const auto* view : order) {
    if (view->bytes.data() != at) {
      return bad_tensor(file, view->name, "its bytes overlap another tensor's or leave a gap");
    }
    at += view->bytes.size();
  }
  if (at != data.data() + data.size()) {
    return invalid_argument(
        fmt::format("{}: {} bytes after the last tensor", file, data.data() + data.size() - at),
        file, "the file is damaged; fetch it again");
  }
  return {};
}

// The shards that an index names, each of them a plain file name. A set: sorted, each once.
Result<std::set<std::string>> shards_of_index(const Json& index, const std::string& file) {
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
    return invalid_argument(fmt::format("{}: no object 'weight_map'", file), file);
  }
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) return bad_tensor(file, tensor, "its shard is not a file name");
    const std::string name = shard;
    if (name.empty() || name.find('/') != std::string::npos || name.starts_with(".")) {
      return bad_tensor(file, tensor, fmt::format("'{}' is not a shard of this folder", name));
    }
    shards.insert(name);
  }
  return shards;
}

}  // namespace

const char* dtype_name(Dtype dtype) { return row_of(dtype).name; }
int64_t dtype_size_bytes(Dtype dtype) { return row_of(dtype).size_bytes; }

int64_t TensorView::numel() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsReader::~SafetensorsReader() {
  for (const auto& mapping : mappings_) ::munmap(mapping.address, mapping.size_bytes);
}

const TensorView* SafetensorsReader::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<std::span<const std::byte>> SafetensorsReader::map_file(const fs::path& path) {
  const std::string file = path.filename().string();
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return invalid_argument(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)),
                            file);
  }
  struct stat status {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const size_t size = regular ? static_cast<size_t>(status.st_size) : 0;
  void* address = MAP_FAILED;
  if (size >= sizeof(uint64_t)) {
    address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  ::close(descriptor);
  if (address == MAP_FAILED) {
    return invalid_argument(fmt::format("{}: not a safetensors file ({} bytes)", file, size), file);
  }
  mappings_.push_back({address, size});
  return std::span(static_cast<const std::byte*>(address), size);
}

Status SafetensorsReader::add_file(const fs::path& path) {
  const std::string file = path.filename().string();
  BA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, map_file(path));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - sizeof(header_bytes)) {
    return invalid_argument(
        fmt::format("{}: header of {} bytes in a file of {}: truncated, or not safetensors", file,
                    header_bytes, bytes.size()),
        file, "fetch the file again");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes),
                              header_bytes);
  BA_ASSIGN_OR_RETURN(const Json header, parse_object(text, file + ": the header"));
  const auto data = bytes.subspan(sizeof(header_bytes) + header_bytes);
  std::vector<TensorView> views;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.items()) {
        if (files_.empty() && value.is_string()) metadata_[key] = value;
      }
      continue;
    }
    BA_ASSIGN_OR_RETURN(TensorView view, parse_tensor(name, entry, file, data));
    views.push_back(std::move(view));
  }
  BA_RETURN_IF_ERROR(check_tiling(views, data, file));
  for (auto& view : views) {
    const std::string name = view.name;
    const auto [at, inserted] = tensors_.emplace(name, std::move(view));
    if (!inserted) return bad_tensor(file, name, "is in " + at->second.file + " too");
  }
  files_.push_back(path);
  return {};
}

Result<std::shared_ptr<const SafetensorsReader>> SafetensorsReader::open_file(
    const fs::path& path) {
  std::shared_ptr<SafetensorsReader> reader(new SafetensorsReader());
  BA_RETURN_IF_ERROR(reader->add_file(path));
  return std::shared_ptr<const SafetensorsReader>(std::move(reader));
}

namespace {

// A file of PyTorch's own format in `directory`, or nothing.
std::string pickled_weights(const fs::path& directory) {
  constexpr std::array<const char*, 5> kPickles = {".bin", ".pt", ".pth", ".pkl", ".ckpt"};
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const fs::path extension = it->path().extension();
    if (std::find(kPickles.begin(), kPickles.end(), extension) != kPickles.end()) {
      return it->path().string();
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const SafetensorsReader>> SafetensorsReader::open_model(
    const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return invalid_argument(fmt::format("no model directory at {}", directory.string()), "model",
                            "give the folder that holds config.json and *.safetensors");
  }
  const fs::path single = directory / "model.safetensors";
  if (fs::exists(single, error)) return open_file(single);
  const fs::path index_path = directory / "model.safetensors.index.json";
  if (!fs::exists(index_path, error)) {
    const std::string pickle = pickled_weights(directory);
    if (!pickle.empty()) {
      return invalid_argument(
          fmt::format("{} is a pickle, which can run code when it is read", pickle), pickle,
          "convert the weights to safetensors (save_pretrained does)");
    }
    return invalid_argument(fmt::format("{} holds neither model.safetensors nor "
                                        "model.safetensors.index.json",
                                        directory.string()),
                            "model", "convert the weights to safetensors (save_pretrained does)");
  }
  const std::string file = index_path.filename().string();
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(index_path, kMaxIndexBytes));
  BA_ASSIGN_OR_RETURN(const Json index, parse_object(text, file));
  BA_ASSIGN_OR_RETURN(const auto shards, shards_of_index(index, file));
  std::shared_ptr<SafetensorsReader> reader(new SafetensorsReader());
  for (const auto& shard : shards) BA_RETURN_IF_ERROR(reader->add_file(directory / shard));
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    const TensorView* view = reader->find(tensor);
    if (view == nullptr || view->file != shard) {
      return bad_tensor(file, tensor, fmt::format("is not in {}", shard.get<std::string>()));
    }
  }
  return std::shared_ptr<const SafetensorsReader>(std::move(reader));
}

namespace {

template <typename T, typename Out>
std::vector<Out> copy_as(const TensorView& tensor) {
  std::vector<Out> out(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<Out>(value);
  }
  return out;
}

}  // namespace

Result<std::vector<int64_t>> read_integers(const TensorView& tensor) {
  switch (tensor.dtype) {
    case Dtype::kI64:
      return copy_as<int64_t, int64_t>(tensor);
    case Dtype::kI32:
      return copy_as<int32_t, int64_t>(tensor);
    case Dtype::kI16:
      return copy_as<int16_t, int64_t>(tensor);
    case Dtype::kI8:
      return copy_as<int8_t, int64_t>(tensor);
    case Dtype::kU8:
    case Dtype::kBool:
      return copy_as<uint8_t, int64_t>(tensor);
    default:
      return bad_tensor(tensor.file, tensor.name,
                        fmt::format("{} where integers are needed", dtype_name(tensor.dtype)));
  }
}

Result<std::vector<float>> read_floats(const TensorView& tensor) {
  const auto widen = [&](auto convert) {
    std::vector<float> out;
    for (const uint16_t bits : copy_as<uint16_t, uint16_t>(tensor)) out.push_back(convert(bits));
    return out;
  };
  switch (tensor.dtype) {
    case Dtype::kF64:
      return copy_as<double, float>(tensor);
    case Dtype::kF32:
      return copy_as<float, float>(tensor);
    case Dtype::kF16:
      return widen(half_bits_to_float);
    case Dtype::kBf16:
      return widen(bfloat16_bits_to_float);
    default:
      return bad_tensor(tensor.file, tensor.name,
                        fmt::format("{} where floats are needed", dtype_name(tensor.dtype)));
  }
}

namespace {

Result<std::string> header_text(const std::vector<TensorToWrite>& tensors,
                                const std::map<std::string, std::string>& metadata) {
  // ordered_json keeps the order of the data, which readers that stream like.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t at = 0;
  for (const auto& tensor : tensors) {
    const auto expected = checked_size_bytes(tensor.shape, tensor.dtype);
    if (!expected || static_cast<size_t>(*expected) != tensor.bytes.size()) {
      return bad_tensor("safetensors", tensor.name,
                        fmt::format("{} {} cannot have {} bytes", dtype_name(tensor.dtype),
                                    shape_text(tensor.shape), tensor.bytes.size()));
    }
    if (header.contains(tensor.name)) return bad_tensor("safetensors", tensor.name, "named twice");
    header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts aligned, as the reference writer does
  return text;
}

}  // namespace

Status write_safetensors(const fs::path& path, const std::vector<TensorToWrite>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  BA_ASSIGN_OR_RETURN(const std::string header, header_text(tensors, metadata));
  const uint64_t header_bytes = header.size();
  std::string content(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  content += header;
  for (const auto& tensor : tensors) {
    content.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return write_file_atomically(path, content);
}

}  // namespace bitalloc
