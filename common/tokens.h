// Token ids and masks of a set of sequences, all of one length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace bitalloc {

struct TokenSet {
  int64_t sequences = 0;
  int64_t length = 0;
  std::vector<int32_t> input_ids;  // [sequences, length]
  std::vector<uint8_t> mask;       // [sequences, length]; 1 = a real token, scored and attended to

  bool empty() const { return sequences == 0; }
};

// Bounds on what a message or a file may claim.
constexpr int64_t kMaxSequences = 1 << 20;
constexpr int64_t kMaxLength = 1 << 22;

// Shapes agree, mask values are 0 or 1, at least one position is scored, 0 ≤ ids < vocab_size.
// `what` names the source ("tokens.safetensors"). Errors: kInvalidArgument naming sequence,
// position.
Status validate(const TokenSet& tokens, int64_t vocab_size, const std::string& what);

// The first sequence with padding before a real token; −1: padding only follows.
int64_t first_with_holes(const TokenSet& tokens);

// SHA-256 over shape, ids and mask.
std::string tokens_sha256(const TokenSet& tokens);

// Sequences [begin, end) as a set of their own.
TokenSet slice(const TokenSet& tokens, int64_t begin, int64_t end);

// Little-endian blobs of the wire: ids as int32 [sequences × length], mask as uint8.
std::string ids_to_blob(const TokenSet& tokens);
std::string mask_to_blob(const TokenSet& tokens);
// Errors: kInvalidArgument when a blob's size is not that of the shape.
Result<TokenSet> tokens_from_blobs(int64_t sequences, int64_t length, std::string_view ids,
                                   std::string_view mask);

}  // namespace bitalloc
