#include "ops/cli/data.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "common/files.h"
#include "common/sha256.h"
#include "common/token_file.h"
#include "ops/cli/process.h"
#include "ops/cli/settings.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kDefaultLength = 512;
constexpr const char* kScript = "ops/python/bitalloc_tokenize.py";
// Exit codes of the script: its stderr is then the message.
constexpr int kScriptBadInput = 2;
constexpr int kScriptNoPackage = 3;

Error missing(const fs::path& file, const std::string& flag) {
  std::error_code ignored;
  const char* what = fs::exists(file, ignored) ? "not a regular file" : "no such file";
  return invalid_argument(fmt::format("{}: {}: {}", flag, what, file.string()), file.string());
}

TokenSet shorten(const TokenSet& tokens, int64_t length) {
  if (length <= 0 || length >= tokens.length) return tokens;
  TokenSet shorter{tokens.sequences, length, {}, {}};
  for (int64_t s = 0; s < tokens.sequences; ++s) {
    const auto from = s * tokens.length;
    shorter.input_ids.insert(shorter.input_ids.end(), tokens.input_ids.begin() + from,
                             tokens.input_ids.begin() + from + length);
    shorter.mask.insert(shorter.mask.end(), tokens.mask.begin() + from,
                        tokens.mask.begin() + from + length);
  }
  return shorter;
}

// Text → a token file in the cache, named after everything that its content depends on.
Result<fs::path> tokenized(const DataRequest& request) {
  std::error_code ignored;
  Sha256 key;
  const fs::path script = shipped(kScript);
  for (const fs::path& file : {request.file, request.model / "tokenizer.json", script}) {
    if (!fs::is_regular_file(file, ignored)) return missing(file, request.flag);
    BA_ASSIGN_OR_RETURN(const std::string content, read_file(file));
    key.update(fmt::format("{} {}\n", content.size(), file.extension().string())).update(content);
  }
  TokenizeRequest text{request.model, request.file, "", request.sequences,
                       request.length > 0 ? request.length : kDefaultLength};
  key.update(fmt::format("{} {}", text.sequences, text.length));
  text.output = request.cache / fmt::format("tokens-{}.safetensors", key.hex().substr(0, 32));
  if (!fs::is_regular_file(text.output, ignored)) BA_RETURN_IF_ERROR(tokenize(text));
  return text.output;
}

}  // namespace

std::string python_program() {
  const char* named = std::getenv("BITALLOC_PYTHON");
  if (named != nullptr && *named != '\0') return named;
  const fs::path own = shipped(".venv/bin/python");
  return own.empty() ? "python3" : own.string();
}

Status tokenize(const TokenizeRequest& request) {
  const fs::path script = shipped(kScript);
  if (script.empty()) {
    return unavailable(fmt::format("{} is not beside this program", kScript), kScript);
  }
  std::vector<std::string> arguments = {python_program(), script.string(),
                                        "--model",        request.model.string(),
                                        "--input",        request.input.string(),
                                        "--output",       request.output.string(),
                                        "--length",       std::to_string(request.length),
                                        "--sequences",    std::to_string(request.sequences)};
  BA_ASSIGN_OR_RETURN(const ProgramResult result, run_program(arguments));
  if (result.exit_code == 0) return {};
  std::string said = result.errors;
  said.erase(said.find_last_not_of(" \n") + 1);
  if (result.exit_code == kScriptBadInput) {
    return invalid_argument(said, request.input.string());
  }
  if (result.exit_code == kScriptNoPackage || result.exit_code == 127) {
    return unavailable(fmt::format("cannot tokenize with {}: {}", arguments[0], said), "python",
                       "run ops/setup.sh, or set BITALLOC_PYTHON to a Python that has the "
                       "tokenizers, numpy and safetensors packages");
  }
  return internal_error(
      fmt::format("the tokenizing script ended with code {}: {}", result.exit_code, said));
}

Result<TokenSet> load_data(const DataRequest& request) {
  std::error_code ignored;
  if (!fs::is_regular_file(request.file, ignored)) return missing(request.file, request.flag);
  fs::path file = request.file;
  if (file.extension() != ".safetensors") {
    BA_ASSIGN_OR_RETURN(file, tokenized(request));
  }
  BA_ASSIGN_OR_RETURN(TokenSet tokens, read_token_file(file));
  if (request.sequences > 0 && request.sequences < tokens.sequences) {
    tokens = slice(tokens, 0, request.sequences);
  }
  tokens = shorten(tokens, request.length);
  BA_RETURN_IF_ERROR(validate(tokens, request.vocab_size, request.file.string()));
  return tokens;
}

}  // namespace bitalloc::cli
