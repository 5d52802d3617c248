// `bitalloc tokenize`: text or JSONL to a token file.
#include <fmt/format.h>

#include <memory>

#include "common/token_file.h"
#include "ops/cli/data.h"
#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace {

constexpr const char* kExamples = R"(examples:
  bitalloc tokenize --model ./m --input score.jsonl --output tokens.safetensors
  bitalloc tokenize --model ./m --input book.txt --output tokens.safetensors --length 1024)";

Result<int> run_tokenize(const Context& context, const TokenizeRequest& request) {
  BA_RETURN_IF_ERROR(tokenize(request));
  BA_ASSIGN_OR_RETURN(const TokenSet tokens, read_token_file(request.output));
  int64_t count = 0;
  for (const uint8_t value : tokens.mask) count += value;
  if (context.json) {
    print_json({{"output", request.output.string()},
                {"sequences", tokens.sequences},
                {"length", tokens.length},
                {"tokens", count}});
  } else {
    print_line(context, fmt::format("{}: {} sequences × {} ({} tokens)", request.output.string(),
                                    tokens.sequences, tokens.length, count));
  }
  return kExitOk;
}

}  // namespace

void add_tokenize_command(CommandLine& line) {
  auto request = std::make_shared<TokenizeRequest>();
  CLI::App* command =
      add_command(line, line.app, "tokenize", "text to token ids and masks", kExamples, false);
  command->add_option("--model", request->model, "whose tokenizer.json")->required();
  command->add_option("--input", request->input, "text, or JSONL with a field \"text\"")
      ->required();
  command->add_option("--output", request->output, "the .safetensors file to write")->required();
  command->add_option("--sequences", request->sequences, "at most so many (default: all)")
      ->check(CLI::PositiveNumber);
  command->add_option("--length", request->length, "tokens a sequence, at most")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 22))
      ->capture_default_str();
  const Context& context = line.context;
  on_run(line, command, [request, &context] { return run_tokenize(context, *request); });
}

}  // namespace bitalloc::cli
