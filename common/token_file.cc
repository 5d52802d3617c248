#include "common/token_file.h"

#include <fmt/format.h>

#include <limits>

#include "common/safetensors.h"

namespace bitalloc {
namespace {

Result<std::vector<int64_t>> read_matrix(const SafetensorsReader& reader, const std::string& name,
                                         const std::string& file) {
  const TensorView* tensor = reader.find(name);
  if (tensor == nullptr) {
    return invalid_argument(fmt::format("{}: no tensor '{}'", file, name), name,
                            "bitalloc tokenize writes such files");
  }
  if (tensor->shape.size() != 2) {
    return invalid_argument(fmt::format("{}: tensor '{}' has shape {}, not [sequences, length]",
                                        file, name, shape_text(tensor->shape)),
                            name);
  }
  return read_integers(*tensor);
}

}  // namespace

Result<TokenSet> read_token_file(const std::filesystem::path& file) {
  const std::string what = file.filename().string();
  BA_ASSIGN_OR_RETURN(const auto reader, SafetensorsReader::open_file(file));
  BA_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, read_matrix(*reader, "input_ids", what));
  const auto& shape = reader->find("input_ids")->shape;
  std::vector<int64_t> mask(ids.size(), 1);
  if (const TensorView* tensor = reader->find("attention_mask")) {
    if (tensor->shape != shape) {
      return invalid_argument(fmt::format("{}: attention_mask {} and input_ids {} differ in shape",
                                          what, shape_text(tensor->shape), shape_text(shape)),
                              "attention_mask");
    }
    BA_ASSIGN_OR_RETURN(mask, read_matrix(*reader, "attention_mask", what));
  }
  TokenSet tokens;
  tokens.sequences = shape[0];
  tokens.length = shape[1];
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] > std::numeric_limits<int32_t>::max()) {
      return invalid_argument(fmt::format("{}: input_ids holds {}", what, ids[i]), "input_ids");
    }
    if (mask[i] != 0 && mask[i] != 1) {
      return invalid_argument(
          fmt::format("{}: attention_mask holds {}, neither 0 nor 1", what, mask[i]),
          "attention_mask");
    }
    tokens.input_ids.push_back(static_cast<int32_t>(ids[i]));
    tokens.mask.push_back(static_cast<uint8_t>(mask[i]));
  }
  return tokens;
}

Status write_token_file(const std::filesystem::path& file, const TokenSet& tokens) {
  const std::vector<int64_t> ids(tokens.input_ids.begin(), tokens.input_ids.end());
  const std::vector<int64_t> mask(tokens.mask.begin(), tokens.mask.end());
  const std::vector<int64_t> shape = {tokens.sequences, tokens.length};
  return write_safetensors(
      file, {{"input_ids", Dtype::kI64, shape, std::as_bytes(std::span(ids))},
             {"attention_mask", Dtype::kI64, shape, std::as_bytes(std::span(mask))}});
}

}  // namespace bitalloc
