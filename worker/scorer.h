// Scores K/V candidates of a model on batches of tokens: the numerical heart of a worker.
//
// Score of a trial (one site at one candidate, everything else at the reference), a sequence:
//   Σ over tokens with mask 1 of KL(reference ‖ trial) of the next-token distributions, in nats,
// from float32 logits as Σ p·(expm1(d) − d), d = log q − log p, accumulated in float64.
//
// Exact mode: the reference pass keeps the hidden state entering every layer and that layer's q, k
// and v, as far as memory goes (memory_plan.h). A trial starts from them, so only the layers from
// the site upwards run, with all candidates of a site stacked along the batch dimension. The output
// layer and the KL run over tiles of tokens; no buffer grows with vocabulary × context. What does
// not fit is run in parts; on CPUs the sums of the parts are to the bit those of the whole, on GPUs
// to rounding.
//
// Deterministic: the same model, batch, sites, candidates, device and thread count give the same
// sums, whatever ran before.
// Thread rule: one thread at a time; `cancel` may be set from any other.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/model_files.h"
#include "common/status.h"
#include "common/tokens.h"
#include "kernels/formats/format.h"
#include "worker/memory_plan.h"

namespace bitalloc {

class Collective;

// One site of a unit. `k_amax`, `v_amax`: largest magnitude that the stored tensor is scaled for
// (scale = amax/448); 448 = constant scale 1.0. They apply to formats with
// ScalePolicy::kCalibrated; kConstant always means 448.
struct SiteTask {
  int layer = 0;
  float k_amax = 448.0F;
  float v_amax = 448.0F;
};

struct UnitScores {
  std::vector<double> kl_sums;  // [sites, candidates, sequences] nats, summed over scored tokens
  std::vector<int64_t> tokens;  // [sequences] scored tokens
};

// A whole assignment against the reference: every layer quantized at once. All are sums over scored
// tokens; `next_tokens` counts positions whose successor is a real token too (nll is over those).
struct JointScores {
  std::vector<double> kl_sums;             // [sequences] nats
  std::vector<int64_t> tokens;             // [sequences]
  std::vector<double> nll_sums;            // [sequences] −log q(next token), nats
  std::vector<double> reference_nll_sums;  // [sequences] the same of the reference
  std::vector<int64_t> next_tokens;        // [sequences]
  std::vector<int64_t>
      top1_agreements;  // [sequences] positions whose most likely token is the same
};

// Largest magnitudes of one layer's K and V as they would be stored.
struct KvAmax {
  float k = 0.0F;
  float v = 0.0F;
};

enum class ComputeDtype { kFloat32, kBfloat16 };

struct ScorerOptions {
  std::string device = "cpu";  // "cpu", "cuda" or "cuda:N"
  ComputeDtype dtype = ComputeDtype::kFloat32;
  int threads = 0;  // of the whole process (ATen has one pool); 0: as many as there are cores
  int64_t tile_bytes = 0;                  // one float32 tile of logits; 0: 64 MiB, GPUs 512 MiB
  int64_t stack_bytes = int64_t{1} << 30;  // widest activation of one stack of trials
  // The ranks that hold a shard each, all of which make the same calls; must outlive the scorer.
  // null: this process holds the whole model. A cancellation on any rank counts on all.
  Collective* group = nullptr;
  MemoryOptions memory = {};
};

class Scorer {
 public:
  // Loads the model (which `inspect_model` must accept). Errors: those of inspect_model;
  // kUnsupported for a device that is not there, or heads that do not divide among the ranks;
  // kResourceExhausted when memory does not suffice. An error of one rank is returned by all.
  static Result<std::unique_ptr<Scorer>> load(const std::filesystem::path& model_directory,
                                              const ScorerOptions& options = {});
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  const ModelFiles& files() const;
  // Bytes of weights copied out of the model's files.
  int64_t weight_bytes_read() const;
  const NetworkShape& network() const;
  // How the last call was cut.
  const UnitPlan& last_plan() const;

  // Scores every candidate at every site. `batch_key` names the content of the batch: the reference
  // pass is kept from call to call as long as it stays the same.
  // Errors: kInvalidArgument (shapes, token ids ≥ vocabulary, no token with mask 1, unknown layer,
  // values that are not finite: names layer and candidate), kCancelled once `cancel` is set,
  // kResourceExhausted with the bytes needed when not even one sequence and candidate fit.
  Result<UnitScores> score(const TokenSet& batch, const std::string& batch_key,
                           const std::vector<SiteTask>& sites,
                           const std::vector<Candidate>& candidates,
                           const std::atomic<bool>& cancel);

  // Largest magnitudes of K and V (after q/k norm and RoPE) over tokens with mask 1: [layers].
  Result<std::vector<KvAmax>> calibrate(const TokenSet& batch, const std::atomic<bool>& cancel);

  // Quantizes every layer at once: `assignment` holds one candidate a layer, `sites` one SiteTask a
  // layer (in order) for the scales.
  Result<JointScores> evaluate(const TokenSet& batch, const std::string& batch_key,
                               const std::vector<SiteTask>& sites,
                               const std::vector<Candidate>& assignment,
                               const std::atomic<bool>& cancel);

  // Frees what is kept of the current batch.
  void forget_batch();

 private:
  struct State;
  explicit Scorer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace bitalloc
