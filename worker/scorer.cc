#include "worker/scorer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <thread>

#include "common/bytes_text.h"
#include "common/positions.h"
#include "common/tensor_parallel.h"
#include "common/weight_parts.h"
#include "worker/head.h"
#include "worker/loaded_network.h"
#include "worker/machine_memory.h"
#include "worker/models/families.h"
#include "worker/parallel.h"
#include "worker/reference.h"
#include "worker/views.h"

namespace bitalloc {
namespace {

// A core's product runs at full speed on tiles that a GPU would find small.
constexpr int64_t kCpuTileBytes = int64_t{64} << 20;
constexpr int64_t kGpuTileBytes = int64_t{512} << 20;

bool is_reference(const Candidate& candidate) {
  return candidate.k.kind == FormatKind::kBf16 && candidate.v.kind == FormatKind::kBf16;
}

Status check_side(const Format& format, float amax, const ModelConfig& config, int layer,
                  const char* side) {
  BA_RETURN_IF_ERROR(check_head_dim(format, config.head_dim));
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

bool is_mixed(const Candidate& candidate) {
  return candidate.k.see != See::kAll || candidate.v.see != See::kAll;
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

// What every rank can use: the smallest of theirs, so that all of them cut a unit alike.
MemoryBudget common_budget(const Lanes& lanes, const MemoryBudget& own) {
  if (lanes.group->is_single()) return own;
  const at::Tensor negated =
      -at::tensor({own.device_bytes, own.activation_bytes, own.host_activation_bytes})
           .to(at::kDouble)
           .to(lanes.device);
  lanes.group->all_reduce_max(negated);
  const at::Tensor least = (-negated).to(at::kLong).cpu();
  const auto* bytes = least.const_data_ptr<int64_t>();
  return {bytes[0], bytes[1], bytes[2]};
}

// The shape of the largest shard: what a plan is made for must be alike on all ranks.
void enlarge_to_all_ranks(const Decoder& model, NetworkShape& network) {
  const Lanes lanes = model.lanes();
  if (lanes.group->is_single()) return;
  network.intermediate_size = share(model.config.intermediate_size, 0, lanes.group->size()).count;
  network.vocab_size = model.shard.longest_vocab;
  const at::Tensor weights =
      at::tensor({static_cast<double>(network.weight_bytes)}, at::kDouble).to(lanes.device);
  lanes.group->all_reduce_max(weights);
  network.weight_bytes = static_cast<int64_t>(weights.item<double>());
}

// Adds the scores of some sequences to those of the sequences before.
void append_joint_scores(const Reference& from, const TokenStatistics& all,
                         const at::Tensor& targets, JointScores& scores) {
  const auto sum = [&](const at::Tensor& values) {
    std::vector<double> sums(from.tokens.size(), 0.0);
    add_by_sequence(values, from.row_sequence, sums.data());
    return sums;
  };
  const auto append = [](auto& to, const auto& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  append(scores.kl_sums, sum(all.kl));
  append(scores.tokens, from.tokens);
  append(scores.nll_sums, sum(all.nll));
  append(scores.reference_nll_sums, sum(all.reference_nll));
  append(scores.next_tokens, whole(sum(targets >= 0)));
  append(scores.top1_agreements, whole(sum(all.top1_agrees)));
}

// The trials of a unit, and where their scores go.
struct Trials {
  const std::vector<SiteTask>& sites;
  const std::vector<Candidate>& candidates;
  std::vector<size_t> active;  // candidates that change something: others score exactly 0
  std::vector<size_t> order;   // sites from the lowest layer to the highest
  int64_t batch_sequences = 0;

  Trials(const std::vector<SiteTask>& s, const std::vector<Candidate>& c, int64_t sequences)
      : sites(s), candidates(c), batch_sequences(sequences) {
    for (size_t i = 0; i < c.size(); ++i) {
      if (!is_reference(c[i])) active.push_back(i);
    }
    for (size_t i = 0; i < s.size(); ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return s[a].layer < s[b].layer; });
  }

  WorkShape shape() const {
    if (sites.empty() || active.empty()) return {};
    return {static_cast<int64_t>(sites.size()), static_cast<int64_t>(active.size()),
            std::any_of(candidates.begin(), candidates.end(), is_mixed)};
  }
};

// Those that run at once: some of Trials::order, some of Trials::active.
struct TrialsPart {
  std::span<const size_t> sites;
  std::span<const size_t> candidates;
};

// Runs of at most `size` of `all`.
std::vector<std::span<const size_t>> runs_of(const std::vector<size_t>& all, int64_t size) {
  std::vector<std::span<const size_t>> runs;
  const auto step = static_cast<size_t>(size);
  for (size_t first = 0; first < all.size(); first += step) {
    runs.push_back(std::span(all).subspan(first, std::min(step, all.size() - first)));
  }
  return runs;
}

}  // namespace

struct Scorer::State {
  ModelFiles files;
  ScorerOptions options;
  at::Device device = at::kCPU;
  Decoder model;
  NetworkShape network;
  MemoryBudget budget;
  UnitPlan plan;  // of the last call
  std::optional<Reference> reference;

  // Loads this rank's shard of `files`, when it fits.
  Status load_network(int threads, Collective& group);
  // Runs `work` by a plan that fits. When memory runs out in spite of the plan (others took it, or
  // a library wants more than its tensors), frees what is kept and tries again with half.
  Status within_memory(const TokenSet& batch, const WorkShape& shape,
                       const std::function<Status(const UnitPlan&)>& work);
  MemoryBudget budget_now() const;
  // Makes `reference` that of sequences [begin, end) of the batch, unless it is.
  Status make_reference(const TokenSet& batch, int64_t begin, int64_t end, const std::string& key,
                        const KeepPlan& keep, const std::atomic<bool>& cancel);
  RowTiles reference_tiles() const;
  // Scores the reference's sequences, which start at sequence `begin` of the batch.
  Status score_reference(const Trials& trials, const UnitPlan& plan, int64_t begin,
                         const std::atomic<bool>& cancel, UnitScores& scores);
  // KL of every row: float64 [sites, candidates, rows] of the part.
  Result<at::Tensor> run_part(const Trials& trials, const TrialsPart& part,
                              const std::vector<Segment>& segments,
                              const std::atomic<bool>& cancel) const;
  // Runs the trials of one site on one chunk; writes normed rows into `normed` [candidates, rows,
  // …].
  Status run_site(const Chunk& chunk, const Activations& from, const SiteTask& site,
                  const std::vector<Candidate>& candidates, const at::Tensor& normed,
                  const std::atomic<bool>& cancel) const;
  // Runs every layer at its candidate, on the reference's sequences. targets: [rows].
  Result<TokenStatistics> run_assignment(const std::vector<SiteTask>& sites,
                                         const std::vector<Candidate>& assignment,
                                         const at::Tensor& targets,
                                         const std::atomic<bool>& cancel) const;
  // amax: [layers], grows to the batch's largest magnitudes.
  Status grow_amax(const TokenSet& batch, const std::atomic<bool>& cancel,
                   std::vector<KvAmax>& amax) const;
  Status collect(const at::Tensor& kl, const Trials& trials, const TrialsPart& part, int64_t begin,
                 UnitScores& scores) const;
};

Status Scorer::State::load_network(int threads, Collective& group) {
  const c10::InferenceMode guard;
  const auto dtype = options.dtype == ComputeDtype::kFloat32 ? at::kFloat : at::kBFloat16;
  const bool on_cpu = device.is_cpu();
  budget = make_budget(options.memory, on_cpu, available_bytes(device), available_host_bytes());
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t needed = loading_bytes(files, element_bytes, on_cpu && dtype != at::kFloat);
  BA_RETURN_IF_ERROR(check_weights_fit(needed / group.size(), budget));
  at::set_num_threads(threads);
  model = load_decoder(files, device, dtype, group);
  return {};
}

// Without a limit of the operator's, what is available now decides: it changes.
MemoryBudget Scorer::State::budget_now() const {
  if (options.memory.limit_bytes || !device.is_cpu()) return budget;
  const int64_t held =
      network.weight_bytes + (reference ? reference->store.keep().device_bytes : 0);
  const int64_t now = held + make_budget({}, true, available_host_bytes(), 0).device_bytes;
  MemoryBudget current = budget;
  current.device_bytes = std::min(budget.device_bytes, now);
  return current;
}

Status Scorer::State::within_memory(const TokenSet& batch, const WorkShape& shape,
                                    const std::function<Status(const UnitPlan&)>& work) {
  BA_RETURN_IF_ERROR(validate(batch, files.config.vocab_size, "batch"));
  MemoryBudget current;
  BA_RETURN_IF_ERROR(guarded([&]() -> Status {
    current = common_budget(model.lanes(), budget_now());
    return {};
  }));
  while (true) {
    BatchShape cut = batch_shape(batch);
    cut.mixed = shape.mixed;
    BA_ASSIGN_OR_RETURN(plan, plan_unit(network, cut, shape, current));
    Status status = guarded([&] {
      const c10::InferenceMode guard;
      return work(plan);
    });
    if (status.ok() || status.error().code != ErrorCode::kResourceExhausted) return status;
    // The other ranks wait in a call for this one, and cannot be told.
    if (!model.lanes().group->is_single()) return status;
    reference.reset();
    release_cached_memory(device);
    if (plan.is_smallest()) {
      return std::move(status).error().with_context(
          fmt::format("{} planned for the smallest part of a unit are not to be had",
                      bytes_text(plan.smallest_bytes)));
    }
    current.device_bytes = std::max(plan.smallest_bytes, plan.peak_bytes / 2);
  }
}

Status Scorer::State::make_reference(const TokenSet& batch, int64_t begin, int64_t end,
                                     const std::string& key, const KeepPlan& keep,
                                     const std::atomic<bool>& cancel) {
  const std::string own_key = fmt::format("{} {}-{}", key, begin, end);
  if (reference && reference->key == own_key && reference->store.keep() == keep) return {};
  reference.reset();  // before the next one is made: both need not fit
  const bool all = begin == 0 && end == batch.sequences;
  BA_ASSIGN_OR_RETURN(Reference made, run_reference(model, all ? batch : slice(batch, begin, end),
                                                    {own_key, keep, batch.sequences}, cancel));
  if (!made.normed.isfinite().all().item<bool>()) {
    return invalid_argument(
        fmt::format("batch {}: the reference itself computes values that are not finite", key),
        "model", "score in float32, or check the weights");
  }
  reference = std::move(made);
  return {};
}

RowTiles Scorer::State::reference_tiles() const {
  std::vector<int64_t> chunk_rows;
  for (const Chunk& chunk : reference->chunks) chunk_rows.push_back(chunk.scored.size(0));
  return cut_rows(chunk_rows, tile_rows(network), reference->whole_chunks);
}

Status Scorer::State::score_reference(const Trials& trials, const UnitPlan& plan, int64_t begin,
                                      const std::atomic<bool>& cancel, UnitScores& scores) {
  std::vector<Segment> segments(reference->chunks.size());
  for (const auto sites : runs_of(trials.order, plan.sites)) {
    std::vector<size_t> layers;
    for (const size_t site : sites) layers.push_back(static_cast<size_t>(trials.sites[site].layer));
    BA_RETURN_IF_ERROR(fetch_segments(model, *reference, layers, cancel, segments));
    for (const auto candidates : runs_of(trials.active, plan.candidates)) {
      const TrialsPart part = {sites, candidates};
      BA_ASSIGN_OR_RETURN(const at::Tensor kl, run_part(trials, part, segments, cancel));
      BA_RETURN_IF_ERROR(collect(kl, trials, part, begin, scores));
    }
  }
  return {};
}

Result<at::Tensor> Scorer::State::run_part(const Trials& trials, const TrialsPart& part,
                                           const std::vector<Segment>& segments,
                                           const std::atomic<bool>& cancel) const {
  const Reference& from = *reference;
  const auto num_sites = static_cast<int64_t>(part.sites.size());
  const auto num_chunks = static_cast<int64_t>(from.chunks.size());
  std::vector<Candidate> candidates;
  for (const size_t c : part.candidates) candidates.push_back(trials.candidates[c]);
  const auto count = static_cast<int64_t>(candidates.size());
  const at::Tensor normed = at::empty({num_sites, count, from.normed.size(0), from.normed.size(1)},
                                      from.normed.options());
  // Lowest layers first: they take longest, so that threads finish together.
  const auto run = [&](int64_t item, int64_t /*slot*/) {
    const int64_t site = item / num_chunks;
    const auto chunk = static_cast<size_t>(item % num_chunks);
    return run_site(from.chunks[chunk], segments[chunk].activations[static_cast<size_t>(site)],
                    trials.sites[part.sites[static_cast<size_t>(site)]], candidates, normed[site],
                    cancel);
  };
  BA_RETURN_IF_ERROR(run_items(model.lanes(), num_sites * num_chunks, cancel, run,
                               std::ssize(trials.sites) * from.whole_chunks));
  BA_ASSIGN_OR_RETURN(const at::Tensor kl, tiled_kl(model, from.normed, normed.flatten(0, 1),
                                                    reference_tiles(), cancel));
  return kl.view({num_sites, count, -1});
}

Status Scorer::State::run_site(const Chunk& chunk, const Activations& from, const SiteTask& site,
                               const std::vector<Candidate>& candidates, const at::Tensor& normed,
                               const std::atomic<bool>& cancel) const {
  const auto layer_index = static_cast<size_t>(site.layer);
  const auto count = static_cast<int64_t>(candidates.size());
  const int64_t per_stack = trials_per_stack(network, chunk.sequences * chunk.tokens);
  QuantizedSides sides(from.qkv.kv, site, chunk.mask);
  for (int64_t first = 0; first < count; first += per_stack) {
    const int64_t size = std::min(per_stack, count - first);
    std::vector<at::Tensor> attended;
    for (int64_t c = first; c < first + size; ++c) {
      attended.push_back(model.layers[layer_index].attention.attend(
          from.qkv.q, sides.see(candidates[static_cast<size_t>(c)]), chunk.context));
    }
    const TokenContext context = size == 1 ? chunk.context : chunk.context.stacked(size);
    const at::Tensor start = size == 1 ? from.hidden : from.hidden.repeat({size, 1, 1});
    at::Tensor hidden =
        model.layers[layer_index].finish(start, size == 1 ? attended.front() : at::cat(attended));
    for (size_t i = layer_index + 1; i < model.layers.size(); ++i) {
      if (model.lanes().stopped(cancel)) return cancelled("cancelled");
      hidden = model.layers[i].forward(hidden, context, static_cast<int64_t>(i), ExactKv());
    }
    for (int64_t c = 0; c < size; ++c) {
      const at::Tensor own = hidden.narrow(0, c * chunk.sequences, chunk.sequences);
      normed[first + c]
          .narrow(0, chunk.first_row, chunk.scored.size(0))
          .copy_(scored_rows(model, chunk, own));
    }
  }
  return {};
}

Status Scorer::State::grow_amax(const TokenSet& batch, const std::atomic<bool>& cancel,
                                std::vector<KvAmax>& amax) const {
  const std::vector<Chunk> chunks = make_chunks(model, batch);
  std::vector<std::vector<KvAmax>> parts(chunks.size(), std::vector<KvAmax>(amax.size()));
  const auto run = [&](int64_t item, int64_t /*slot*/) -> Status {
    const Chunk& chunk = chunks[static_cast<size_t>(item)];
    const CalibratingKv view(chunk.mask, parts[static_cast<size_t>(item)]);
    model.forward(chunk.ids, chunk.context, view);
    return {};
  };
  BA_RETURN_IF_ERROR(run_items(model.lanes(), std::ssize(chunks), cancel, run));
  for (const auto& part : parts) {
    for (size_t i = 0; i < amax.size(); ++i) {
      if (!(part[i].k <= amax[i].k)) amax[i].k = part[i].k;
      if (!(part[i].v <= amax[i].v)) amax[i].v = part[i].v;
    }
  }
  reduce_amax(model.lanes(), amax);
  return {};
}

Result<TokenStatistics> Scorer::State::run_assignment(const std::vector<SiteTask>& sites,
                                                      const std::vector<Candidate>& assignment,
                                                      const at::Tensor& targets,
                                                      const std::atomic<bool>& cancel) const {
  const Reference& from = *reference;
  const at::Tensor normed = at::empty_like(from.normed);
  const auto run = [&](int64_t item, int64_t /*slot*/) -> Status {
    const Chunk& chunk = from.chunks[static_cast<size_t>(item)];
    const AssignedKv view(sites, assignment, chunk.mask);
    at::Tensor hidden = model.embed(chunk.ids);
    for (size_t i = 0; i < model.layers.size(); ++i) {
      if (model.lanes().stopped(cancel)) return cancelled("cancelled");
      hidden = model.layers[i].forward(hidden, chunk.context, static_cast<int64_t>(i), view);
    }
    normed.narrow(0, chunk.first_row, chunk.scored.size(0))
        .copy_(scored_rows(model, chunk, hidden));
    return {};
  };
  BA_RETURN_IF_ERROR(
      run_items(model.lanes(), std::ssize(from.chunks), cancel, run, from.whole_chunks));
  return tiled_statistics(model, from.normed, normed, targets, reference_tiles(), cancel);
}

Status Scorer::State::collect(const at::Tensor& kl, const Trials& trials, const TrialsPart& part,
                              int64_t begin, UnitScores& scores) const {
  for (size_t s = 0; s < part.sites.size(); ++s) {
    for (size_t c = 0; c < part.candidates.size(); ++c) {
      const at::Tensor values = kl[static_cast<int64_t>(s)][static_cast<int64_t>(c)];
      const size_t site = part.sites[s];
      const size_t candidate = part.candidates[c];
      if (!values.isfinite().all().item<bool>()) {
        return invalid_argument(
            fmt::format("layer {} at {}: the KL divergence is not finite", trials.sites[site].layer,
                        candidate_name(trials.candidates[candidate])),
            "model", "score in float32, or leave this candidate out");
      }
      const size_t trial = site * trials.candidates.size() + candidate;
      add_by_sequence(
          values, reference->row_sequence,
          scores.kl_sums.data() + trial * static_cast<size_t>(trials.batch_sequences) + begin);
    }
  }
  return {};
}

Scorer::Scorer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Scorer::~Scorer() = default;

const ModelFiles& Scorer::files() const { return state_->files; }
int64_t Scorer::weight_bytes_read() const { return state_->model.weight_bytes_read; }
const UnitPlan& Scorer::last_plan() const { return state_->plan; }
const NetworkShape& Scorer::network() const { return state_->network; }
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
  const Status loaded = guarded([&] { return state->load_network(threads, group); });
  BA_RETURN_IF_ERROR(guarded([&]() -> Status {
    BA_RETURN_IF_ERROR(agree(group, loaded));
    state->network =
        network_shape(state->model, {state->options.tile_bytes, state->options.stack_bytes});
    enlarge_to_all_ranks(state->model, state->network);
    return {};
  }));
  return std::unique_ptr<Scorer>(new Scorer(std::move(state)));
}

Result<UnitScores> Scorer::score(const TokenSet& batch, const std::string& batch_key,
                                 const std::vector<SiteTask>& sites,
                                 const std::vector<Candidate>& candidates,
                                 const std::atomic<bool>& cancel) {
  State& state = *state_;
  BA_RETURN_IF_ERROR(check_tasks(state.files.config, sites, candidates));
  BA_RETURN_IF_ERROR(check_positions(batch, candidates, "tokens"));
  const Trials trials(sites, candidates, batch.sequences);
  UnitScores scores;
  const auto run = [&](const UnitPlan& plan) -> Status {
    scores.tokens.clear();
    scores.kl_sums.assign(sites.size() * candidates.size() * static_cast<size_t>(batch.sequences),
                          0.0);
    for (int64_t begin = 0; begin < batch.sequences; begin += plan.sequences) {
      const int64_t end = std::min(begin + plan.sequences, batch.sequences);
      BA_RETURN_IF_ERROR(state.make_reference(batch, begin, end, batch_key, plan.keep, cancel));
      const auto& tokens = state.reference->tokens;
      scores.tokens.insert(scores.tokens.end(), tokens.begin(), tokens.end());
      if (plan.sites == 0) continue;
      BA_RETURN_IF_ERROR(state.score_reference(trials, plan, begin, cancel, scores));
    }
    return {};
  };
  BA_RETURN_IF_ERROR(state.within_memory(batch, trials.shape(), run));
  return scores;
}

Result<std::vector<KvAmax>> Scorer::calibrate(const TokenSet& batch,
                                              const std::atomic<bool>& cancel) {
  State& state = *state_;
  const size_t layers = state.model.layers.size();
  std::vector<KvAmax> amax;
  const auto run = [&](const UnitPlan& plan) -> Status {
    amax.assign(layers, {});
    for (int64_t begin = 0; begin < batch.sequences; begin += plan.sequences) {
      const int64_t end = std::min(begin + plan.sequences, batch.sequences);
      BA_RETURN_IF_ERROR(state.grow_amax(slice(batch, begin, end), cancel, amax));
    }
    return {};
  };
  BA_RETURN_IF_ERROR(state.within_memory(batch, {}, run));
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
  BA_RETURN_IF_ERROR(check_positions(batch, assignment, "tokens"));
  JointScores scores;
  const auto run = [&](const UnitPlan& plan) -> Status {
    scores = {};
    for (int64_t begin = 0; begin < batch.sequences; begin += plan.sequences) {
      const int64_t end = std::min(begin + plan.sequences, batch.sequences);
      BA_RETURN_IF_ERROR(state.make_reference(batch, begin, end, batch_key, plan.keep, cancel));
      const at::Tensor targets = next_tokens(slice(batch, begin, end));
      BA_ASSIGN_OR_RETURN(const TokenStatistics all,
                          state.run_assignment(sites, assignment, targets, cancel));
      if (!all.kl.isfinite().all().item<bool>()) {
        return invalid_argument("the assignment's KL divergence is not finite", "assignment",
                                "evaluate in float32");
      }
      append_joint_scores(*state.reference, all, targets, scores);
    }
    return {};
  };
  WorkShape shape;
  shape.mixed = std::any_of(assignment.begin(), assignment.end(), is_mixed);
  BA_RETURN_IF_ERROR(state.within_memory(batch, shape, run));
  return scores;
}

}  // namespace bitalloc
