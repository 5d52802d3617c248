#include "worker/scorer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include "common/tensor_parallel.h"
#include "common/weight_parts.h"
#include "worker/head.h"
#include "worker/models/families.h"
#include "worker/parallel.h"
#include "worker/reference.h"
#include "worker/views.h"

namespace bitalloc {
namespace {

// Tokens that trials stacked on a core may have together (a chunk is at least one sequence).
constexpr int64_t kCpuStackTokens = 256;
constexpr int64_t kNvfp4Block = 16;
// A core's product runs at full speed on tiles that a GPU would find small.
constexpr int64_t kCpuTileBytes = int64_t{64} << 20;
constexpr int64_t kGpuTileBytes = int64_t{512} << 20;

bool is_reference(const Candidate& candidate) {
  return candidate.k.kind == FormatKind::kBf16 && candidate.v.kind == FormatKind::kBf16;
}

Status check_side(const Format& format, float amax, const ModelConfig& config, int layer,
                  const char* side) {
  if (format.kind == FormatKind::kNvfp4 && config.head_dim % kNvfp4Block != 0) {
    return unsupported(fmt::format("nvfp4 needs a head_dim that is a multiple of {}; this model's "
                                   "is {}",
                                   kNvfp4Block, config.head_dim),
                       "candidates");
  }
  if (format.scale == ScalePolicy::kCalibrated && !(std::isfinite(amax) && amax > 0.0F)) {
    return invalid_argument(fmt::format("layer {}: {} needs a calibrated amax for {}, not {}",
                                        layer, side, format_name(format), amax),
                            "amax");
  }
  return {};
}

Status check_tasks(const ModelConfig& config, const std::vector<SiteTask>& sites,
                   const std::vector<Candidate>& candidates) {
  for (const auto& site : sites) {
    if (site.layer < 0 || site.layer >= config.num_layers) {
      return invalid_argument(
          fmt::format("layer {} of a model of {} layers", site.layer, config.num_layers), "sites");
    }
    for (const auto& candidate : candidates) {
      BA_RETURN_IF_ERROR(check_side(candidate.k, site.k_amax, config, site.layer, "K"));
      BA_RETURN_IF_ERROR(check_side(candidate.v, site.v_amax, config, site.layer, "V"));
    }
  }
  return {};
}

Result<at::Device> parse_device(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  try {
    const at::Device device(name);
    const int gpus = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
    if (device.is_cuda() && device.index() < gpus) return device;
  } catch (const c10::Error&) {
  }
  return unsupported(fmt::format("device '{}' is not there", name), "device",
                     "there are cpu and, with a GPU and its driver, cuda or cuda:N");
}

// The model's files, looked at as a group: every rank checks all names and shapes, but reads and
// hashes its part of the bytes only. Every rank gets the same error, or none.
Result<ModelFiles> inspect(const std::filesystem::path& directory, int threads, Collective& group) {
  Result<ModelFiles> files =
      inspect_model(directory, {.read_weights = group.is_single(), .threads = threads});
  Status own = files.ok() ? check_tensor_parallel(files->config, group.size(), "--tp")
                          : Status(files.error());
  BA_RETURN_IF_ERROR(agree(group, own));
  if (group.is_single()) return files;
  const auto part = hash_weight_part(*files, group.rank(), group.size(), threads);
  BA_RETURN_IF_ERROR(agree(group, part.ok() ? Status() : part.error()));
  BA_ASSIGN_OR_RETURN(files->weights_sha256, join_weight_parts(*files, group.gather_texts(*part)));
  return files;
}

// Sums of rows' values by sequence, in the order of rows.
void add_by_sequence(const at::Tensor& values, const std::vector<int64_t>& row_sequence,
                     double* sums) {
  const at::Tensor contiguous = values.to(at::kDouble).contiguous();
  const double* value = contiguous.const_data_ptr<double>();
  for (size_t row = 0; row < row_sequence.size(); ++row) sums[row_sequence[row]] += value[row];
}

// [rows]: the token after each scored one; −1 where the next position is padding or not there.
at::Tensor next_tokens(const TokenSet& batch) {
  std::vector<int64_t> next;
  for (size_t i = 0; i < batch.mask.size(); ++i) {
    if (batch.mask[i] == 0) continue;
    const bool last = static_cast<int64_t>(i) % batch.length == batch.length - 1;
    next.push_back(last || batch.mask[i + 1] == 0 ? -1 : batch.input_ids[i + 1]);
  }
  return at::tensor(next);
}

std::vector<int64_t> whole(const std::vector<double>& values) {
  std::vector<int64_t> rounded;
  for (const double value : values) rounded.push_back(static_cast<int64_t>(value));
  return rounded;
}

// The largest over every rank's KV heads; what is not finite comes out as infinity.
void reduce_amax(const Lanes& lanes, std::vector<KvAmax>& amax) {
  if (lanes.group->is_single()) return;
  std::vector<float> values;
  const auto without_nan = [](float x) {
    return std::isnan(x) ? std::numeric_limits<float>::infinity() : x;
  };
  for (const KvAmax& layer : amax) {
    values.push_back(without_nan(layer.k));
    values.push_back(without_nan(layer.v));
  }
  const at::Tensor all = at::tensor(values).to(lanes.device);
  lanes.group->all_reduce_max(all);
  const at::Tensor largest = all.cpu();
  for (size_t i = 0; i < amax.size(); ++i) {
    amax[i] = {largest.const_data_ptr<float>()[2 * i], largest.const_data_ptr<float>()[2 * i + 1]};
  }
}

JointScores joint_scores(const Reference& from, const TokenStatistics& all,
                         const at::Tensor& targets) {
  const auto sum = [&](const at::Tensor& values) {
    std::vector<double> sums(from.tokens.size(), 0.0);
    add_by_sequence(values, from.row_sequence, sums.data());
    return sums;
  };
  return {sum(all.kl),
          from.tokens,
          sum(all.nll),
          sum(all.reference_nll),
          whole(sum(targets >= 0)),
          whole(sum(all.top1_agrees))};
}

}  // namespace

struct Scorer::State {
  ModelFiles files;
  ScorerOptions options;
  at::Device device = at::kCPU;
  Decoder model;
  std::optional<Reference> reference;

  Status make_reference(const TokenSet& batch, const std::string& key,
                        const std::atomic<bool>& cancel);
  int64_t trials_per_stack(const Chunk& chunk) const;
  // Runs the trials of one site on one chunk; writes normed rows into trials [candidates, rows, …].
  Status run_site(const Reference& from, size_t chunk_index, const SiteTask& site,
                  const std::vector<Candidate>& candidates, const at::Tensor& trials,
                  const std::atomic<bool>& cancel) const;
  Result<UnitScores> collect(const at::Tensor& kl, const std::vector<SiteTask>& sites,
                             const std::vector<Candidate>& candidates,
                             const std::vector<size_t>& active) const;
};

Status Scorer::State::make_reference(const TokenSet& batch, const std::string& key,
                                     const std::atomic<bool>& cancel) {
  if (reference && reference->key == key) return {};
  reference.reset();  // before the next one is made: both need not fit
  BA_RETURN_IF_ERROR(validate(batch, files.config.vocab_size, "batch " + key));
  BA_ASSIGN_OR_RETURN(Reference made, run_reference(model, batch, key, cancel));
  if (!made.normed.isfinite().all().item<bool>()) {
    return invalid_argument(
        fmt::format("batch {}: the reference itself computes values that are not finite", key),
        "model", "score in float32, or check the weights");
  }
  reference = std::move(made);
  return {};
}

int64_t Scorer::State::trials_per_stack(const Chunk& chunk) const {
  const int64_t tokens = chunk.sequences * chunk.tokens;
  if (device.is_cpu()) return std::max<int64_t>(1, kCpuStackTokens / tokens);
  // gate_up is the widest activation; its product and the residual live beside it.
  const int64_t widest = 4 * files.config.intermediate_size * model.embedding.element_size();
  return std::max<int64_t>(1, options.stack_bytes / (tokens * widest));
}

Status Scorer::State::run_site(const Reference& from, size_t chunk_index, const SiteTask& site,
                               const std::vector<Candidate>& candidates, const at::Tensor& trials,
                               const std::atomic<bool>& cancel) const {
  const Chunk& chunk = from.chunks[chunk_index];
  const auto layer_index = static_cast<size_t>(site.layer);
  const at::Tensor& entering = from.hidden[chunk_index][layer_index];
  const Qkv& qkv = from.qkv[chunk_index][layer_index];
  const auto count = static_cast<int64_t>(candidates.size());
  const int64_t per_stack = trials_per_stack(chunk);
  QuantizedSides sides(qkv.kv, site);
  for (int64_t first = 0; first < count; first += per_stack) {
    const int64_t size = std::min(per_stack, count - first);
    std::vector<at::Tensor> attended;
    for (int64_t c = first; c < first + size; ++c) {
      attended.push_back(model.layers[layer_index].attention.attend(
          qkv.q, sides.see(candidates[static_cast<size_t>(c)]), chunk.context));
    }
    const TokenContext context = size == 1 ? chunk.context : chunk.context.stacked(size);
    const at::Tensor start = size == 1 ? entering : entering.repeat({size, 1, 1});
    at::Tensor hidden =
        model.layers[layer_index].finish(start, size == 1 ? attended.front() : at::cat(attended));
    for (size_t i = layer_index + 1; i < model.layers.size(); ++i) {
      if (model.lanes().stopped(cancel)) return cancelled("cancelled");
      hidden = model.layers[i].forward(hidden, context, static_cast<int64_t>(i), ExactKv());
    }
    for (int64_t c = 0; c < size; ++c) {
      const at::Tensor own = hidden.narrow(0, c * chunk.sequences, chunk.sequences);
      trials[first + c]
          .narrow(0, chunk.first_row, chunk.scored.size(0))
          .copy_(scored_rows(model, chunk, own));
    }
  }
  return {};
}

Result<UnitScores> Scorer::State::collect(const at::Tensor& kl, const std::vector<SiteTask>& sites,
                                          const std::vector<Candidate>& candidates,
                                          const std::vector<size_t>& active) const {
  const size_t sequences = reference->tokens.size();
  UnitScores scores;
  scores.tokens = reference->tokens;
  scores.kl_sums.assign(sites.size() * candidates.size() * sequences, 0.0);
  for (size_t s = 0; s < sites.size(); ++s) {
    for (size_t a = 0; a < active.size(); ++a) {
      const at::Tensor values = kl[static_cast<int64_t>(s * active.size() + a)];
      const size_t c = active[a];
      if (!values.isfinite().all().item<bool>()) {
        return invalid_argument(fmt::format("layer {} at {}: the KL divergence is not finite",
                                            sites[s].layer, candidate_name(candidates[c])),
                                "model", "score in float32, or leave this candidate out");
      }
      add_by_sequence(values, reference->row_sequence,
                      scores.kl_sums.data() + (s * candidates.size() + c) * sequences);
    }
  }
  return scores;
}

Scorer::Scorer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Scorer::~Scorer() = default;

const ModelFiles& Scorer::files() const { return state_->files; }
int64_t Scorer::weight_bytes_read() const { return state_->model.weight_bytes_read; }
void Scorer::forget_batch() { state_->reference.reset(); }

Result<std::unique_ptr<Scorer>> Scorer::load(const std::filesystem::path& model_directory,
                                             const ScorerOptions& options) {
  auto state = std::make_unique<State>();
  Collective& group = options.group != nullptr ? *options.group : single_rank();
  state->options = options;
  auto device = parse_device(options.device);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : cores;
  BA_RETURN_IF_ERROR(guarded([&]() -> Status {
    BA_RETURN_IF_ERROR(agree(group, device.ok() ? Status() : device.error()));
    BA_ASSIGN_OR_RETURN(state->files, inspect(model_directory, threads, group));
    return {};
  }));
  state->device = *device;
  if (state->options.tile_bytes <= 0) {
    state->options.tile_bytes = state->device.is_cpu() ? kCpuTileBytes : kGpuTileBytes;
  }
  const Status loaded = guarded([&]() -> Status {
    const c10::InferenceMode guard;
    at::set_num_threads(threads);
    const auto dtype = options.dtype == ComputeDtype::kFloat32 ? at::kFloat : at::kBFloat16;
    state->model = load_decoder(state->files, state->device, dtype, group);
    return {};
  });
  BA_RETURN_IF_ERROR(guarded([&] { return agree(group, loaded); }));
  return std::unique_ptr<Scorer>(new Scorer(std::move(state)));
}

Result<UnitScores> Scorer::score(const TokenSet& batch, const std::string& batch_key,
                                 const std::vector<SiteTask>& sites,
                                 const std::vector<Candidate>& candidates,
                                 const std::atomic<bool>& cancel) {
  State& state = *state_;
  BA_RETURN_IF_ERROR(check_tasks(state.files.config, sites, candidates));
  BA_RETURN_IF_ERROR(guarded([&] { return state.make_reference(batch, batch_key, cancel); }));
  // Candidates that change nothing score exactly 0 without being run.
  std::vector<size_t> active;
  std::vector<Candidate> run;
  for (size_t c = 0; c < candidates.size(); ++c) {
    if (is_reference(candidates[c])) continue;
    active.push_back(c);
    run.push_back(candidates[c]);
  }
  const Reference& from = *state.reference;
  const auto num_sites = static_cast<int64_t>(sites.size());
  const auto num_chunks = static_cast<int64_t>(from.chunks.size());
  at::Tensor kl;
  BA_RETURN_IF_ERROR(guarded([&]() -> Status {
    const c10::InferenceMode guard;
    const auto count = static_cast<int64_t>(run.size());
    const at::Tensor trials = at::empty(
        {num_sites, count, from.normed.size(0), from.normed.size(1)}, from.normed.options());
    // Lowest layers first: they take longest, so that threads finish together.
    std::vector<size_t> order(sites.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return sites[a].layer < sites[b].layer; });
    BA_RETURN_IF_ERROR(run_items(
        state.model.lanes(), num_sites * num_chunks, cancel, [&](int64_t item, int64_t /*slot*/) {
          const size_t site = order[static_cast<size_t>(item / num_chunks)];
          return state.run_site(from, static_cast<size_t>(item % num_chunks), sites[site], run,
                                trials[static_cast<int64_t>(site)], cancel);
        }));
    if (count == 0 || num_sites == 0) return {};
    BA_ASSIGN_OR_RETURN(kl, tiled_kl(state.model, from.normed, trials.flatten(0, 1),
                                     state.options.tile_bytes, cancel));
    return {};
  }));
  return state.collect(kl, sites, candidates, active);
}

Result<std::vector<KvAmax>> Scorer::calibrate(const TokenSet& batch,
                                              const std::atomic<bool>& cancel) {
  const State& state = *state_;
  BA_RETURN_IF_ERROR(validate(batch, state.files.config.vocab_size, "calibration batch"));
  const size_t layers = state.model.layers.size();
  std::vector<KvAmax> amax(layers);
  BA_RETURN_IF_ERROR(guarded([&]() -> Status {
    const c10::InferenceMode guard;
    const std::vector<Chunk> chunks = make_chunks(state.model, batch);
    std::vector<std::vector<KvAmax>> parts(chunks.size(), std::vector<KvAmax>(layers));
    BA_RETURN_IF_ERROR(run_items(state.model.lanes(), static_cast<int64_t>(chunks.size()), cancel,
                                 [&](int64_t item, int64_t /*slot*/) -> Status {
                                   const Chunk& chunk = chunks[static_cast<size_t>(item)];
                                   const CalibratingKv view(chunk.mask,
                                                            parts[static_cast<size_t>(item)]);
                                   state.model.forward(chunk.ids, chunk.context, view);
                                   return {};
                                 }));
    for (const auto& part : parts) {
      for (size_t i = 0; i < layers; ++i) {
        if (!(part[i].k <= amax[i].k)) amax[i].k = part[i].k;
        if (!(part[i].v <= amax[i].v)) amax[i].v = part[i].v;
      }
    }
    reduce_amax(state.model.lanes(), amax);
    return {};
  }));
  for (size_t i = 0; i < layers; ++i) {
    if (std::isfinite(amax[i].k) && std::isfinite(amax[i].v)) continue;
    return invalid_argument(fmt::format("layer {}: K or V is not finite", i), "model",
                            "calibrate in float32, or check the weights");
  }
  return amax;
}

Result<JointScores> Scorer::evaluate(const TokenSet& batch, const std::string& batch_key,
                                     const std::vector<SiteTask>& sites,
                                     const std::vector<Candidate>& assignment,
                                     const std::atomic<bool>& cancel) {
  State& state = *state_;
  const size_t layers = state.model.layers.size();
  if (sites.size() != layers || assignment.size() != layers) {
    return invalid_argument(
        fmt::format("an assignment of {} layers for a model of {}", assignment.size(), layers),
        "assignment");
  }
  for (size_t i = 0; i < layers; ++i) {
    BA_CHECK(sites[i].layer == static_cast<int>(i),
             "sites of an evaluation are all layers, in order");
    BA_RETURN_IF_ERROR(check_tasks(state.files.config, {sites[i]}, {assignment[i]}));
  }
  BA_RETURN_IF_ERROR(guarded([&] { return state.make_reference(batch, batch_key, cancel); }));
  const Reference& from = *state.reference;
  TokenStatistics all;
  at::Tensor targets;
  BA_RETURN_IF_ERROR(guarded([&]() -> Status {
    const c10::InferenceMode guard;
    const at::Tensor normed = at::empty_like(from.normed);
    BA_RETURN_IF_ERROR(run_items(state.model.lanes(), static_cast<int64_t>(from.chunks.size()),
                                 cancel, [&](int64_t item, int64_t /*slot*/) -> Status {
                                   const Chunk& chunk = from.chunks[static_cast<size_t>(item)];
                                   const AssignedKv view(sites, assignment);
                                   at::Tensor hidden = state.model.embed(chunk.ids);
                                   for (size_t i = 0; i < layers; ++i) {
                                     if (state.model.lanes().stopped(cancel))
                                       return cancelled("cancelled");
                                     hidden = state.model.layers[i].forward(
                                         hidden, chunk.context, static_cast<int64_t>(i), view);
                                   }
                                   normed.narrow(0, chunk.first_row, chunk.scored.size(0))
                                       .copy_(scored_rows(state.model, chunk, hidden));
                                   return {};
                                 }));
    targets = next_tokens(batch);
    BA_ASSIGN_OR_RETURN(all, tiled_statistics(state.model, from.normed, normed, targets,
                                              state.options.tile_bytes, cancel));
    return {};
  }));
  if (!all.kl.isfinite().all().item<bool>()) {
    return invalid_argument("the assignment's KL divergence is not finite", "assignment",
                            "evaluate in float32");
  }
  return joint_scores(from, all, targets);
}

}  // namespace bitalloc
