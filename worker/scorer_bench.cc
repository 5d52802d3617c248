// scorer_bench: exact scoring of all layers of a model with the default candidates; prints JSON
// with the seconds it took and the scores, in the shape that the comparison with the peer reads.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "common/json.h"
#include "common/token_file.h"
#include "worker/scorer.h"

namespace bitalloc {
namespace {

struct Flags {
  std::string model;
  std::string tokens;
  std::string dtype = "float32";
  std::string device = "cpu";
  std::vector<std::string> candidates = {"fp8_e4m3/fp8_e4m3", "nvfp4/nvfp4", "fp8_e4m3/nvfp4"};
  int threads = 0;
  int64_t batch = 8;
  int64_t sites_per_unit = 5;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double user_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

// Units of one batch as a coordinator grants them: from the last layers to the first.
Status score_batch(Scorer& scorer, const Flags& flags, const TokenSet& batch,
                   const std::string& key, const std::vector<Candidate>& candidates,
                   std::vector<std::vector<double>>& scores) {
  const std::atomic<bool> cancel{false};
  const int64_t layers = scorer.files().config.num_layers;
  for (int64_t end = layers; end > 0; end -= flags.sites_per_unit) {
    std::vector<SiteTask> sites;
    for (int64_t i = std::max<int64_t>(0, end - flags.sites_per_unit); i < end; ++i) {
      sites.push_back({.layer = static_cast<int>(i)});
    }
    BA_ASSIGN_OR_RETURN(const UnitScores unit, scorer.score(batch, key, sites, candidates, cancel));
    size_t at = 0;
    for (const auto& site : sites) {
      for (size_t c = 0; c < candidates.size(); ++c) {
        for (int64_t s = 0; s < batch.sequences; ++s) {
          scores[static_cast<size_t>(site.layer)][c] += unit.kl_sums[at++];
        }
      }
    }
  }
  return {};
}

Result<Json> bench(const Flags& flags) {
  ScorerOptions options;
  options.device = flags.device;
  options.threads = flags.threads;
  options.dtype = flags.dtype == "bfloat16" ? ComputeDtype::kBfloat16 : ComputeDtype::kFloat32;
  BA_ASSIGN_OR_RETURN(const TokenSet tokens, read_token_file(flags.tokens));
  std::vector<Candidate> candidates;
  for (const auto& name : flags.candidates) {
    BA_ASSIGN_OR_RETURN(const Candidate candidate, parse_candidate(name));
    candidates.push_back(candidate);
  }
  const auto before_load = std::chrono::steady_clock::now();
  BA_ASSIGN_OR_RETURN(const auto scorer, Scorer::load(flags.model, options));
  const double load_seconds = seconds_since(before_load);
  std::vector<std::vector<double>> scores(static_cast<size_t>(scorer->files().config.num_layers),
                                          std::vector<double>(candidates.size(), 0.0));
  int64_t scored = 0;
  for (const uint8_t real : tokens.mask) scored += real;
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start = user_cpu_seconds();
  for (int64_t begin = 0; begin < tokens.sequences; begin += flags.batch) {
    const TokenSet batch = slice(tokens, begin, std::min(begin + flags.batch, tokens.sequences));
    BA_RETURN_IF_ERROR(
        score_batch(*scorer, flags, batch, std::to_string(begin), candidates, scores));
  }
  return Json{{"candidates", flags.candidates},
              {"scores", scores},
              {"tokens", scored},
              {"seconds", seconds_since(start)},
              {"user_cpu_seconds", user_cpu_seconds() - cpu_start},
              {"load_seconds", load_seconds},
              {"threads", flags.threads}};
}

}  // namespace
}  // namespace bitalloc

int main(int argc, char** argv) {
  bitalloc::Flags flags;
  CLI::App app("Times exact scoring of every layer of MODEL on TOKENS.");
  app.add_option("model", flags.model, "Hugging Face model directory")->required();
  app.add_option("tokens", flags.tokens, "safetensors with input_ids, attention_mask")->required();
  app.add_option("--dtype", flags.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--device", flags.device, "cpu, cuda or cuda:N");
  app.add_option("--threads", flags.threads, "0: as many as there are cores");
  app.add_option("--batch", flags.batch, "sequences a batch");
  app.add_option("--sites-per-unit", flags.sites_per_unit)->check(CLI::PositiveNumber);
  app.add_option("--candidates", flags.candidates, "K/V pairs");
  CLI11_PARSE(app, argc, argv);
  const auto result = bitalloc::bench(flags);
  if (!result.ok()) {
    fmt::print(stderr, "error: {}\n", result.error().message);
    return 1;
  }
  fmt::print("{}\n", result->dump());
  return 0;
}
