// Token sets as safetensors files: `input_ids` and `attention_mask` [sequences, length], integers.
#pragma once

#include <filesystem>

#include "common/status.h"
#include "common/tokens.h"

namespace bitalloc {

// Without `attention_mask`, every token counts. Errors: kInvalidArgument naming file and tensor
// when the file is not such a file or an id does not fit 32 bits. Ids are checked against a
// vocabulary by `validate`.
Result<TokenSet> read_token_file(const std::filesystem::path& file);

// I64 both, as the Python libraries write and read them.
Status write_token_file(const std::filesystem::path& file, const TokenSet& tokens);

}  // namespace bitalloc
