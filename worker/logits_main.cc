// bitalloc-logits: the logits of a model on given tokens, for comparison with other programs.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "common/model_files.h"
#include "common/token_file.h"
#include "worker/models/families.h"
#include "worker/parallel.h"

namespace bitalloc {
namespace {

struct Flags {
  std::string model;
  std::string tokens;
  std::string output;
  std::string dtype = "float32";
  std::string device = "cpu";
  int threads = 0;
};

Status write_logits(const Flags& flags) {
  const c10::InferenceMode guard;
  if (flags.threads > 0) at::set_num_threads(flags.threads);
  BA_ASSIGN_OR_RETURN(const ModelFiles files, inspect_model(flags.model));
  BA_ASSIGN_OR_RETURN(const TokenSet tokens, read_token_file(flags.tokens));
  BA_RETURN_IF_ERROR(validate(tokens, files.config.vocab_size, flags.tokens));
  const at::Device device(flags.device);
  const Decoder model =
      load_decoder(files, device, flags.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat);
  const std::vector<int64_t> sizes = {tokens.sequences, tokens.length};
  const std::vector<int64_t> ids(tokens.input_ids.begin(), tokens.input_ids.end());
  const std::vector<int64_t> mask(tokens.mask.begin(), tokens.mask.end());
  const TokenContext context =
      model.make_token_context((at::tensor(mask) == 1).view(sizes).to(device));
  const at::Tensor normed =
      model.forward(at::tensor(ids).view(sizes).to(device), context, ExactKv());
  const at::Tensor logits = model.logits(normed.flatten(0, 1)).cpu();
  const std::span values(logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel()));
  return write_safetensors(flags.output,
                           {{"logits",
                             Dtype::kF32,
                             {tokens.sequences, tokens.length, files.config.vocab_size},
                             std::as_bytes(values)}});
}

}  // namespace
}  // namespace bitalloc

int main(int argc, char** argv) {
  bitalloc::Flags flags;
  CLI::App app("Writes float32 logits [sequences, length, vocab] of MODEL on TOKENS to OUTPUT.");
  app.add_option("model", flags.model, "Hugging Face model directory")->required();
  app.add_option("tokens", flags.tokens, "safetensors with input_ids, attention_mask")->required();
  app.add_option("output", flags.output, "safetensors file to write")->required();
  app.add_option("--dtype", flags.dtype, "of weights and activations")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--device", flags.device, "cpu, cuda or cuda:N");
  app.add_option("--threads", flags.threads, "0: as many as there are cores");
  CLI11_PARSE(app, argc, argv);
  const bitalloc::Status status = bitalloc::guarded([&] { return bitalloc::write_logits(flags); });
  if (status.ok()) return 0;
  fmt::print(stderr, "error: {}\n", status.error().message);
  return status.error().code == bitalloc::ErrorCode::kInvalidArgument ? 2 : 1;
}
