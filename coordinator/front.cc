#include "coordinator/front.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "common/json_text.h"
#include "coordinator/report.h"

namespace bitalloc {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr size_t kBackgroundJobs = 64;
constexpr size_t kResampleJobs = 4;  // seconds each: more would be late for their clients

std::filesystem::path checkpoint_file(const std::string& directory, const std::string& search) {
  return std::filesystem::path(directory) / (search + ".checkpoint.json");
}

// The sequences of one batch of a set.
TokenSet batch_of(const TokenSet& tokens, const UnitId& unit, int64_t batch_sequences) {
  const int64_t begin = unit.batch.value * batch_sequences;
  return slice(tokens, begin, std::min(begin + batch_sequences, tokens.sequences));
}

DoorLock door_lock(const FrontOptions& options) {
  return {options.server_secret_key, options.access};
}

Json lease_json(const std::string& search, const UnitId& unit, Fence fence) {
  return {{"search", search}, {"unit", unit_name(unit)}, {"fence", fence.value}};
}

}  // namespace

TimeMs steady_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Front::Front(boost::asio::io_context& loop, ResultStore& store, FrontOptions options,
             std::function<void(const std::string&)> fatal)
    : loop_(loop),
      store_(store),
      options_(std::move(options)),
      fatal_(std::move(fatal)),
      queue_(options_.queue),
      clients_(loop, context_, Door::kClients, door_lock(options_),
               [this](Socket::Received r) { on_client(std::move(r)); }),
      workers_(loop, context_, Door::kWorkers, door_lock(options_),
               [this](Socket::Received r) { on_worker(std::move(r)); }),
      timer_(loop),
      checker_(loop, kBackgroundJobs),
      solver_(loop, kBackgroundJobs),
      resampler_(loop, kResampleJobs) {}

Status Front::start(std::vector<StoredSearch> searches) {
  for (StoredSearch& stored : searches) {
    if (stored.tokens != nullptr) tokens_[stored.record.id] = std::move(stored.tokens);
    apply(event::SearchLoaded{std::move(stored.record)});
  }
  if (options_.access != nullptr) {
    zap_ = std::make_unique<ZapHandler>(context_, *options_.access);
    BA_RETURN_IF_ERROR(zap_->start());
  }
  for (const auto& endpoint : options_.client_endpoints) {
    BA_RETURN_IF_ERROR(clients_.bind(endpoint));
  }
  for (const auto& endpoint : options_.worker_endpoints) {
    BA_RETURN_IF_ERROR(workers_.bind(endpoint));
  }
  tick();
  return {};
}

void Front::post(StoreEvent event) {
  boost::asio::post(loop_,
                    [this, event = std::move(event)]() mutable { on_store(std::move(event)); });
}

void Front::stop() {
  apply(event::Stop{});
  stopped_ = true;
}

void Front::tick() {
  apply(event::Tick{});
  tell_watchers();
  std::erase_if(worker_peers_, [this](const auto& entry) {
    return !queue_.workers().contains(entry.first) && !queue_.held().contains(entry.first) &&
           worker_peers_.size() > options_.queue.max_workers;
  });
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) tick();
  });
}

void Front::on_store(StoreEvent event) {
  if (const auto* done = std::get_if<StoreDone>(&event)) return apply(*done);
  if (const auto* lost = std::get_if<StoreLost>(&event)) {
    spdlog::error("Redis is lost, nothing is granted until it is back: {}", lost->reason);
    return apply(*lost);
  }
  if (const auto* fenced = std::get_if<StoreFenced>(&event)) return fatal_(fenced->reason);
  spdlog::info("Redis is back");
  apply(StoreBack{});
}

void Front::apply(const Event& event) {
  if (stopped_) return;
  Actions actions = queue_.handle(event, steady_now_ms());
  for (Action& action : actions) {
    std::visit([this](auto& a) { perform(a); }, action);
  }
}

void Front::perform(action::Persist& action) {
  // Only an accepted submission may replace the spec and the tokens that units are cut from.
  if (const auto* put = std::get_if<PutSearch>(&action.op.change)) {
    spec_texts_.erase(put->record.id);
    if (put->tokens) tokens_[put->record.id] = put->tokens;
  }
  BA_CHECK(store_.put(std::move(action.op)), "the store's queue is full despite admission");
}

const std::string& Front::spec_text(const Search& search) {
  std::string& text = spec_texts_[search.id];
  if (text.empty()) text = json_text(to_json(search.spec));
  return text;
}

void Front::perform(const action::SendUnit& action) {
  const Search* search = queue_.find(action.search);
  const auto tokens = tokens_.find(action.search);
  if (search == nullptr || tokens == tokens_.end()) {
    spdlog::error("no tokens for search '{}'", action.search);
    return;
  }
  wire::Message message;
  message.type = "unit";
  message.header = lease_json(action.search, action.unit, action.fence);
  message.header["lease_ms"] = action.lease_ms;
  message.more_fields = "\"spec\":" + spec_text(*search);
  const bool scores = action.unit.kind == UnitKind::kScore;
  const TokenSet batch = batch_of(scores ? tokens->second->scored : tokens->second->calibration,
                                  action.unit, search->spec.batch_sequences);
  message.blobs = {ids_to_blob(batch), mask_to_blob(batch)};
  if (scores) {
    const std::vector<float> amax = search->table.amax();
    message.blobs.emplace_back(reinterpret_cast<const char*>(amax.data()),
                               amax.size() * sizeof(float));
  }
  spdlog::debug("{} of '{}' to {}", unit_name(action.unit), action.search, action.worker.value);
  send_worker(action.worker, message);
}

void Front::perform(const action::SendAck& action) {
  send_worker(
      action.worker,
      {"ack", action.correlation_id, lease_json(action.search, action.unit, action.fence), {}});
}

void Front::perform(const action::SendReject& action) {
  wire::Message message{"error", action.correlation_id, error_to_json(action.error), {}};
  message.header.update(lease_json(action.search, action.unit, action.fence));
  spdlog::error("result of {} of '{}' from worker {} refused: {}", unit_name(action.unit),
                action.search, action.worker.value, action.error.message);
  send_worker(action.worker, message);
}

void Front::perform(const action::SendRevoke& action) {
  send_worker(action.worker,
              {"revoke", "", lease_json(action.search, action.unit, action.fence), {}});
}

void Front::perform(const action::WriteCheckpoint& action) {
  const auto written = [this, search = action.search] {
    boost::asio::post(loop_, [this, search] { apply(event::CheckpointWritten{search}); });
  };
  if (options_.checkpoint_dir.empty()) return written();
  const Snapshot copy = snapshot(*queue_.find(action.search));
  const auto file = checkpoint_file(options_.checkpoint_dir, action.search);
  const bool taken = checker_.submit([copy, file, written] {
    const Status status = write_checkpoint(*copy, file);
    if (!status.ok()) spdlog::error("no checkpoint of '{}': {}", copy->id, status.error().message);
    return written;
  });
  // The results are in Redis: the search is done without this copy, too.
  if (!taken) {
    spdlog::error("no checkpoint of '{}': too much to do", action.search);
    written();
  }
}

void Front::perform(const action::Publish& action) {
  snapshots_.erase(action.search);
  for (auto& [key, watch] : watches_) {
    if (watch.search == action.search) watch.changed = true;
  }
}

void Front::perform(const action::Forget& action) {
  tokens_.erase(action.search);
  spec_texts_.erase(action.search);
  snapshots_.erase(action.search);
}

void Front::perform(const action::ReplyStatus& action) {
  const Search* search = queue_.find(action.search);
  if (search == nullptr) return answer(action.request, not_found("the search was deleted", "id"));
  Json status = status_of(*search);
  const auto request = requests_.find(action.request);
  if (request != requests_.end() &&
      (request->second.message.type == "submit" || request->second.message.type == "import")) {
    status["created"] = action.created;
  }
  answer(action.request, std::move(status));
}

void Front::perform(const action::ReplyDeleted& action) {
  if (!options_.checkpoint_dir.empty()) {
    std::error_code error;
    std::filesystem::remove(checkpoint_file(options_.checkpoint_dir, action.search), error);
    if (error) spdlog::warn("checkpoint of '{}' stays: {}", action.search, error.message());
  }
  answer(action.request, Json::object());
}

void Front::perform(const action::ReplyError& action) { answer(action.request, action.error); }

void Front::perform(const action::Log& action) {
  spdlog::log(action.defect ? spdlog::level::err : spdlog::level::warn, "{}", action.text);
}

}  // namespace bitalloc
