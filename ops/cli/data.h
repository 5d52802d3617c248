// Scoring data: token files, or text that the shipped Python script turns into one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/status.h"
#include "common/tokens.h"

namespace bitalloc::cli {

struct DataRequest {
  std::filesystem::path file;   // .safetensors: tokens; anything else: text or JSONL
  std::string flag = "--data";  // names the source in errors
  std::filesystem::path model;  // whose tokenizer reads text
  std::filesystem::path cache;  // folder for tokens made from text, by content
  int64_t sequences = 0;        // at most; 0: all
  int64_t length = 0;           // tokens a sequence, at most; 0: as the file has them (text: 512)
  int64_t vocab_size = 0;
};

// Tokens, cut to the request's limits and validated against the vocabulary. Errors:
// kInvalidArgument naming file and field.
Result<TokenSet> load_data(const DataRequest& request);

struct TokenizeRequest {
  std::filesystem::path model;
  std::filesystem::path input;
  std::filesystem::path output;
  int64_t sequences = 0;  // 0: all
  int64_t length = 512;
};
// Runs the script. Errors: kInvalidArgument with what the script says of the input, kUnavailable
// when there is no Python with the tokenizers package.
Status tokenize(const TokenizeRequest& request);

// The Python that has what the script needs: BITALLOC_PYTHON, else .venv of the source tree, else
// python3.
std::string python_program();

}  // namespace bitalloc::cli
