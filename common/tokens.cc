#include "common/tokens.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "common/sha256.h"

namespace bitalloc {

static_assert(std::endian::native == std::endian::little, "blobs are little-endian");

namespace {

Status validate_shape(const TokenSet& tokens, const std::string& what) {
  if (tokens.sequences <= 0 || tokens.length <= 0) {
    return invalid_argument(fmt::format("{} holds no tokens", what), what,
                            "give at least one sequence of at least two tokens");
  }
  if (tokens.sequences > kMaxSequences || tokens.length > kMaxLength) {
    return invalid_argument(
        fmt::format("{}: {} sequences of {} tokens is beyond the limit of {} × {}", what,
                    tokens.sequences, tokens.length, kMaxSequences, kMaxLength),
        what);
  }
  const size_t count = static_cast<size_t>(tokens.sequences * tokens.length);
  if (tokens.input_ids.size() != count || tokens.mask.size() != count) {
    return invalid_argument(
        fmt::format("{}: input_ids and attention_mask do not have one shape", what), what);
  }
  return {};
}

}  // namespace

Status validate(const TokenSet& tokens, int64_t vocab_size, const std::string& what) {
  BA_RETURN_IF_ERROR(validate_shape(tokens, what));
  int64_t scored = 0;
  for (size_t i = 0; i < tokens.input_ids.size(); ++i) {
    const int64_t sequence = static_cast<int64_t>(i) / tokens.length;
    const int64_t position = static_cast<int64_t>(i) % tokens.length;
    if (tokens.input_ids[i] < 0 || tokens.input_ids[i] >= vocab_size) {
      return invalid_argument(
          fmt::format("{}: input_ids[{}, {}] is {}, but the model's vocabulary has {} tokens", what,
                      sequence, position, tokens.input_ids[i], vocab_size),
          what + ".input_ids", "tokenize the text with this model's tokenizer");
    }
    if (tokens.mask[i] > 1) {
      return invalid_argument(fmt::format("{}: attention_mask[{}, {}] is {}, neither 0 nor 1", what,
                                          sequence, position, tokens.mask[i]),
                              what + ".attention_mask");
    }
    scored += tokens.mask[i];
  }
  if (scored == 0) {
    return invalid_argument(
        fmt::format("{}: attention_mask is 0 everywhere: nothing to score", what),
        what + ".attention_mask");
  }
  return {};
}

int64_t first_with_holes(const TokenSet& tokens) {
  for (int64_t i = 0; i + 1 < std::ssize(tokens.mask); ++i) {
    const bool same_sequence = (i + 1) % tokens.length != 0;
    const auto at = static_cast<size_t>(i);
    if (same_sequence && tokens.mask[at] == 0 && tokens.mask[at + 1] != 0) return i / tokens.length;
  }
  return -1;
}

std::string tokens_sha256(const TokenSet& tokens) {
  return Sha256()
      .update(fmt::format("tokens {} {}\n", tokens.sequences, tokens.length))
      .update(tokens.input_ids.data(), tokens.input_ids.size() * sizeof(int32_t))
      .update(tokens.mask.data(), tokens.mask.size())
      .hex();
}

TokenSet slice(const TokenSet& tokens, int64_t begin, int64_t end) {
  BA_CHECK(0 <= begin && begin <= end && end <= tokens.sequences, "slice outside the token set");
  const auto from = begin * tokens.length;
  const auto to = end * tokens.length;
  return {end - begin,
          tokens.length,
          {tokens.input_ids.begin() + from, tokens.input_ids.begin() + to},
          {tokens.mask.begin() + from, tokens.mask.begin() + to}};
}

std::string ids_to_blob(const TokenSet& tokens) {
  return {reinterpret_cast<const char*>(tokens.input_ids.data()),
          tokens.input_ids.size() * sizeof(int32_t)};
}

std::string mask_to_blob(const TokenSet& tokens) {
  return {reinterpret_cast<const char*>(tokens.mask.data()), tokens.mask.size()};
}

Result<TokenSet> tokens_from_blobs(int64_t sequences, int64_t length, std::string_view ids,
                                   std::string_view mask) {
  if (sequences < 0 || sequences > kMaxSequences || length < 0 || length > kMaxLength) {
    return invalid_argument("token set: shape out of bounds", "sequences");
  }
  const size_t count = static_cast<size_t>(sequences * length);
  if (ids.size() != count * sizeof(int32_t) || mask.size() != count) {
    return invalid_argument(
        fmt::format("token set: {} and {} bytes of ids and mask do not fit {} × {} tokens",
                    ids.size(), mask.size(), sequences, length),
        "input_ids");
  }
  TokenSet tokens{sequences, length, std::vector<int32_t>(count), std::vector<uint8_t>(count)};
  if (count == 0) return tokens;
  std::memcpy(tokens.input_ids.data(), ids.data(), ids.size());
  std::memcpy(tokens.mask.data(), mask.data(), mask.size());
  return tokens;
}

}  // namespace bitalloc
