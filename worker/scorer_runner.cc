#include "worker/scorer_runner.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <torch/version.h>

#include <mutex>
#include <thread>

#include "common/bytes_text.h"
#include "worker/collective.h"
#include "worker/machine_memory.h"
#include "worker/parallel.h"
#include "worker/scorer.h"

#ifdef BITALLOC_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

namespace bitalloc {
namespace {

constexpr std::chrono::minutes kLoading{30};

// What the coordinator compares workers by: a unit that was too large for one goes to one with
// more.
Result<int64_t> usable_memory_bytes(const std::string& device, const MemoryOptions& memory) {
  if (memory.limit_bytes.has_value()) return *memory.limit_bytes;
  int64_t bytes = 0;
  BA_RETURN_IF_ERROR(guarded([&]() -> Status {
    bytes = total_bytes(c10::Device(device));
    return {};
  }));
  return device == "cpu" ? bytes / std::max<int64_t>(1, memory.machine_workers) : bytes;
}

// Of what this program was built with and runs on.
Json library_versions() {
  Json versions = {{"bitalloc", BITALLOC_VERSION}, {"torch", TORCH_VERSION}};
#ifdef BITALLOC_HAVE_CUDA
  int nccl = 0;
  int cuda = 0;
  if (ncclGetVersion(&nccl) == ncclSuccess) versions["nccl"] = nccl;
  if (cudaRuntimeGetVersion(&cuda) == cudaSuccess) versions["cuda_runtime"] = cuda;
#endif
  return versions;
}

class ScorerRunner : public UnitRunner {
 public:
  ScorerRunner(ScorerRunnerOptions options, Collective& group, int64_t memory_bytes)
      : device_(std::move(options.device)),
        threads_(options.threads),
        memory_bytes_(memory_bytes),
        group_(group),
        model_roots_(std::move(options.model_roots)),
        memory_(options.memory) {}

  Result<UnitResult> run(const UnitWork& work, const std::atomic<bool>& cancel) override {
    try {
      BA_RETURN_IF_ERROR(use_model(work.spec));
      if (work.unit.kind == UnitKind::kCalibrate) return calibrate(work, cancel);
      return work.spec.kind == JobKind::kSearch ? score(work, cancel) : evaluate(work, cancel);
    } catch (const CollectiveError& e) {
      return unavailable(e.what());
    } catch (const std::bad_alloc&) {
      return resource_exhausted(fmt::format("out of memory in {}", unit_name(work.unit)), "",
                                "use a smaller --batch");
    } catch (const std::exception& e) {
      return internal_error(fmt::format("{}: {}", unit_name(work.unit), e.what()));
    }
  }

  Json capabilities() const override {
    return {{"device", device_},
            {"threads", threads_},
            {"tp", group_.size()},
            {"memory_bytes", memory_bytes_},
            {"versions", library_versions()}};
  }

  std::vector<std::string> models() const override {
    const std::lock_guard lock(mutex_);
    return loaded_.empty() ? std::vector<std::string>() : std::vector<std::string>{loaded_};
  }

 private:
  Status use_model(const SearchSpec& spec) {
    const std::string key = spec.model.weights_sha256 + spec.model.config_sha256 + spec.dtype;
    if (scorer_ && key == key_) return {};
    const auto directory = model_roots_.resolve(spec.model.path);
    BA_RETURN_IF_ERROR(agree(group_, directory.ok() ? Status() : not_here(directory.error())));
    scorer_.reset();  // before the next one is loaded: two may not fit
    set_loaded("");
    // Another disk, or another one's cache: ranks may take very differently long.
    const Patience patience(group_,
                            std::max<std::chrono::milliseconds>(group_.timeout(), kLoading));
    spdlog::info("loading {} as {} on {}", spec.model.path, spec.dtype, device_);
    ScorerOptions options;
    options.device = device_;
    options.threads = threads_;
    options.group = &group_;
    options.memory = memory_;
    options.dtype = spec.dtype == "bfloat16" ? ComputeDtype::kBfloat16 : ComputeDtype::kFloat32;
    Result<std::unique_ptr<Scorer>> loaded = Scorer::load(*directory, options);
    if (!loaded.ok()) return not_here(std::move(loaded).error());
    std::unique_ptr<Scorer> scorer = std::move(loaded).value();
    BA_RETURN_IF_ERROR(agree(group_, check_identity(scorer->files(), spec.model)));
    scorer_ = std::move(scorer);
    key_ = key;
    set_loaded(spec.model.weights_sha256);
    return {};
  }

  static Status check_identity(const ModelFiles& files, const ModelRef& expected) {
    const bool same_weights = files.weights_sha256 == expected.weights_sha256;
    if (same_weights && files.config_sha256 == expected.config_sha256) return {};
    return mismatch(fmt::format("{} holds another model than the one submitted (other {})",
                                expected.path, same_weights ? "config" : "weights"),
                    "model.path", "mount the same model directory on every worker");
  }

  void set_loaded(const std::string& weights_sha256) {
    const std::lock_guard lock(mutex_);
    loaded_ = weights_sha256;
  }

  // Whoever submitted the search could read the model: what this worker misses or cannot read is
  // its own trouble, and another worker may have it.
  static Error not_here(Error error) {
    const bool about_files =
        error.code == ErrorCode::kNotFound || error.code == ErrorCode::kInvalidArgument;
    if (about_files) error.code = ErrorCode::kMismatch;
    return error;
  }

  static std::vector<SiteTask> tasks(const UnitWork& work, int64_t begin, int64_t end) {
    std::vector<SiteTask> tasks;
    for (int64_t i = begin; i < end; ++i) {
      tasks.push_back(
          {static_cast<int>(work.spec.sites[i].layer), work.amax[2 * i], work.amax[2 * i + 1]});
    }
    return tasks;
  }

  Result<UnitResult> calibrate(const UnitWork& work, const std::atomic<bool>& cancel) {
    BA_ASSIGN_OR_RETURN(const std::vector<KvAmax> layers, scorer_->calibrate(work.tokens, cancel));
    UnitResult result;
    result.unit = work.unit;
    for (const Site& site : work.spec.sites) {
      result.amax.push_back(layers[site.layer].k);
      result.amax.push_back(layers[site.layer].v);
    }
    return result;
  }

  Result<UnitResult> score(const UnitWork& work, const std::atomic<bool>& cancel) {
    BA_ASSIGN_OR_RETURN(UnitScores scores,
                        scorer_->score(work.tokens, tokens_sha256(work.tokens),
                                       tasks(work, work.unit.row_begin, work.unit.row_end),
                                       work.spec.candidates, cancel));
    log_plan();
    UnitResult result;
    result.unit = work.unit;
    result.sums = std::move(scores.kl_sums);
    result.tokens = std::move(scores.tokens);
    return result;
  }

  Result<UnitResult> evaluate(const UnitWork& work, const std::atomic<bool>& cancel) {
    // Layers outside the search stay at the reference.
    const Candidate reference;
    std::vector<SiteTask> every_layer(work.spec.model.num_layers);
    for (size_t i = 0; i < every_layer.size(); ++i) every_layer[i].layer = static_cast<int>(i);
    for (const SiteTask& task : tasks(work, 0, std::ssize(work.spec.sites))) {
      every_layer[task.layer] = task;
    }
    UnitResult result;
    result.unit = work.unit;
    for (int64_t row = work.unit.row_begin; row < work.unit.row_end; ++row) {
      std::vector<Candidate> assignment(every_layer.size(), reference);
      const auto& chosen = work.spec.configurations[row].candidates;
      for (size_t i = 0; i < chosen.size(); ++i) assignment[work.spec.sites[i].layer] = chosen[i];
      BA_ASSIGN_OR_RETURN(const JointScores joint,
                          scorer_->evaluate(work.tokens, tokens_sha256(work.tokens), every_layer,
                                            assignment, cancel));
      append_metrics(joint, result);
    }
    return result;
  }

  // Once for every way in which units are cut.
  void log_plan() {
    const UnitPlan& plan = scorer_->last_plan();
    const std::string text = fmt::format(
        "units take {} at most: {} sequences × {} candidates × {} layers at once; {} of the "
        "reference kept on the device, {} on the host",
        bytes_text(plan.peak_bytes), plan.sequences, plan.candidates, plan.sites,
        bytes_text(plan.keep.device_bytes), bytes_text(plan.keep.host_bytes));
    if (text != logged_plan_) spdlog::info("{}", text);
    logged_plan_ = text;
  }

  // In the order of plan.h's Metric.
  static void append_metrics(const JointScores& joint, UnitResult& result) {
    auto& sums = result.sums;
    sums.insert(sums.end(), joint.kl_sums.begin(), joint.kl_sums.end());
    sums.insert(sums.end(), joint.nll_sums.begin(), joint.nll_sums.end());
    sums.insert(sums.end(), joint.top1_agreements.begin(), joint.top1_agreements.end());
    sums.insert(sums.end(), joint.next_tokens.begin(), joint.next_tokens.end());
    result.tokens = joint.tokens;
  }

  const std::string device_;
  const int threads_;
  const int64_t memory_bytes_;
  Collective& group_;
  const ModelRoots model_roots_;
  const MemoryOptions memory_;
  std::unique_ptr<Scorer> scorer_;
  std::string key_;  // identity of the model in scorer_
  mutable std::mutex mutex_;
  std::string loaded_;  // guarded: weights of the model in scorer_
  std::string logged_plan_;
};

}  // namespace

Result<std::string> choose_device(const std::string& asked, int rank, int ranks) {
  const std::string device = asked == "auto" ? (at::hasCUDA() ? "cuda" : "cpu") : asked;
  if (device == "cpu") return device;
  const bool numbered = device.starts_with("cuda:") && device.size() > 5 && device.size() < 9 &&
                        device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "cuda" && !numbered) {
    return invalid_argument(
        fmt::format("device '{}' is unknown; there are auto, cpu, cuda, cuda:N", device),
        "--device");
  }
  if (!at::hasCUDA()) {
    return unsupported(fmt::format("device '{}' is not there: LibTorch sees no GPU", device),
                       "--device", "check the driver with nvidia-smi, or use --device cpu");
  }
  if (ranks == 1 || device != "cuda") return device;
  return fmt::format("cuda:{}", rank % at::detail::getCUDAHooks().deviceCount());
}

Result<std::unique_ptr<UnitRunner>> make_scorer_runner(ScorerRunnerOptions options) {
  Collective& group = options.group != nullptr ? *options.group : single_rank();
  BA_ASSIGN_OR_RETURN(const std::string device,
                      choose_device(options.device, group.rank(), group.size()));
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  options.device = device;
  if (options.threads <= 0) options.threads = std::max(1, cores);
  BA_ASSIGN_OR_RETURN(const int64_t memory_bytes, usable_memory_bytes(device, options.memory));
  return std::unique_ptr<UnitRunner>(
      std::make_unique<ScorerRunner>(std::move(options), group, memory_bytes));
}

}  // namespace bitalloc
