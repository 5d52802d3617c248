#include "coordinator/redis_store.h"

#include "common/json_text.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "coordinator/redis_scripts.h"

namespace bitalloc {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxBatch = 512;            // changes a pipeline
constexpr size_t kMaxBatchBytes = 64 << 20;  // of results; Redis closes clients far above
constexpr size_t kMaxGroupBytes = 1 << 20;   // of results in one script call
constexpr size_t kResultsPerCommand = 1000;  // of an import or a start
constexpr int kMaxPauseMs = 2'000;
constexpr int kLoadingPauseMs = 250;
constexpr const char* kLock = "bitalloc:coordinator";
constexpr const char* kSearches = "bitalloc:searches";
constexpr const char* kFenced = "FENCED ";

std::string key(const std::string& search, const char* name) {
  return fmt::format("bitalloc:{{{}}}:{}", search, name);
}

std::vector<std::string> all_keys(const std::string& search) {
  std::vector<std::string> keys;
  for (const char* name :
       {"spec", "state", "fence", "leases", "results", "tokens", "events", "failures"}) {
    keys.push_back(key(search, name));
  }
  return keys;
}

// Value of "name:" in the text of INFO.
std::string info_value(const std::string& info, const std::string& name) {
  const size_t at = info.find("\n" + name + ":");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 2;
  return info.substr(begin, info.find_first_of("\r\n", begin) - begin);
}

bool version_at_least(const std::string& version, int major, int minor) {
  int have_major = 0;
  int have_minor = 0;
  if (std::sscanf(version.c_str(), "%d.%d", &have_major, &have_minor) != 2) return false;
  return std::tie(have_major, have_minor) >= std::tie(major, minor);
}

Result<Lease> parse_lease(const std::string& text) {
  const size_t space = text.find(' ');
  char* end = nullptr;
  const int64_t fence = std::strtoll(text.c_str(), &end, 10);
  if (space == std::string::npos || end != text.c_str() + space) {
    return invalid_argument(fmt::format("stored lease '{}' is damaged", text), "leases");
  }
  return Lease{WorkerEpoch(text.substr(space + 1)), Fence(fence)};
}

// Leases and results: what goes in groups.
bool changes_a_unit(const StoreOp& op) {
  return std::holds_alternative<PutLease>(op.change) ||
         std::holds_alternative<DropLease>(op.change) ||
         std::holds_alternative<PutResult>(op.change);
}

size_t result_bytes(const StoreOp& op) {
  const auto* result = std::get_if<PutResult>(&op.change);
  return result == nullptr ? 0 : result->packed.size();
}

// How many of the first changes go out as one call: a group of units' changes, or one other.
size_t length_of_first_call(std::span<const StoreOp> changes) {
  size_t count = 0;
  size_t bytes = 0;
  while (count < changes.size() && changes_a_unit(changes[count]) && bytes < kMaxGroupBytes) {
    bytes += result_bytes(changes[count++]);
  }
  return std::max<size_t>(count, 1);
}

// Redis listens before it has read its file, which may take minutes.
bool is_loading(const Status& status) {
  return !status.ok() && status.error().message.find("Redis: LOADING ") != std::string::npos;
}

// `outcome` is one reply of kChangeUnits.
StoreDone to_done(uint64_t token, const RedisReply& outcome) {
  StoreDone done{token, StoreDone::Outcome::kNew, ""};
  if (outcome.text() == "duplicate") done.outcome = StoreDone::Outcome::kDuplicate;
  if (outcome.text(0) == "conflict") {
    done.outcome = StoreDone::Outcome::kConflict;
    done.stored = outcome.text(1);
  }
  return done;
}

}  // namespace

RedisStore::RedisStore(RedisStoreOptions options, Callback callback)
    : options_(std::move(options)), callback_(std::move(callback)) {}

RedisStore::~RedisStore() {
  close(0);
  if (thread_.joinable()) thread_.join();  // every wait of the thread has a time-out
}

Result<std::unique_ptr<RedisStore>> RedisStore::open(RedisStoreOptions options, Callback callback) {
  std::unique_ptr<RedisStore> store(new RedisStore(std::move(options), std::move(callback)));
  Status ready = store->prepare();
  if (is_loading(ready)) spdlog::info("Redis is loading its file");
  while (is_loading(ready)) {
    std::this_thread::sleep_for(milliseconds(kLoadingPauseMs));
    ready = store->prepare();
  }
  BA_RETURN_IF_ERROR(ready);
  BA_RETURN_IF_ERROR(store->take_lock());
  return store;
}

Status RedisStore::prepare() {
  ++connection_number_;
  BA_RETURN_IF_ERROR(connection_.connect(options_.address, options_.timeout_ms));
  BA_RETURN_IF_ERROR(check_settings());
  return load_scripts();
}

Status RedisStore::check_settings() {
  BA_ASSIGN_OR_RETURN(const RedisReply info, connection_.command({"INFO", "server"}));
  const std::string version = info_value(info.text(), "redis_version");
  if (!version_at_least(version, 6, 2)) {
    return invalid_argument(fmt::format("Redis {} is too old", version), "--redis",
                            "use Redis 6.2 or newer");
  }
  struct Setting {
    const char* name;
    const char* wanted;
  };
  constexpr std::array<Setting, 3> kSettings = {
      {{"appendonly", "yes"}, {"appendfsync", "always"}, {"maxmemory-policy", "noeviction"}}};
  std::string wrong;
  std::string mend;
  for (const auto& [name, wanted] : kSettings) {
    BA_ASSIGN_OR_RETURN(const RedisReply reply, connection_.command({"CONFIG", "GET", name}));
    if (reply.text(1) == wanted) continue;
    wrong += fmt::format("{}{} is {}", wrong.empty() ? "" : ", ", name, reply.text(1));
    mend += fmt::format("{}--{} {}", mend.empty() ? "" : " ", name, wanted);
  }
  durable_ = wrong.empty();
  detail_ = fmt::format("Redis {}, {}", version, durable_ ? "appendfsync always" : wrong);
  if (durable_) return {};
  if (options_.allow_volatile) {
    spdlog::warn("{} can lose acknowledged results: {}", options_.address.text, wrong);
    return {};
  }
  return invalid_argument(
      fmt::format("Redis at {} can lose acknowledged results: {}", options_.address.text, wrong),
      "--redis",
      fmt::format("start it with `redis-server {}`, or accept the loss with --allow-volatile",
                  mend));
}

Status RedisStore::load_scripts() {
  const std::array<const char*, kCount> bodies = {
      redis_scripts::kRenew,        redis_scripts::kPutSearch,    redis_scripts::kPutStatus,
      redis_scripts::kChangeUnits,  redis_scripts::kDeleteSearch, redis_scripts::kPutFailure,
      redis_scripts::kClearFailures};
  for (size_t i = 0; i < bodies.size(); ++i) {
    const std::string text = std::string(redis_scripts::kCheckLock) + bodies[i];
    BA_ASSIGN_OR_RETURN(const RedisReply reply, connection_.command({"SCRIPT", "LOAD", text}));
    script_sha_[i] = reply.text();
  }
  return {};
}

Status RedisStore::take_lock() {
  const auto give_up = Clock::now() + milliseconds(options_.lock_ttl_ms + 500);
  while (true) {
    BA_ASSIGN_OR_RETURN(const RedisReply reply,
                        connection_.command({"EVAL", redis_scripts::kAcquire, "1", kLock,
                                             options_.holder, options_.take_over ? "take-over" : "",
                                             std::to_string(options_.lock_ttl_ms)}));
    if (reply.integer(0) > 0) {
      fence_ = std::to_string(reply.integer(0));
      changes_ = reply.integer(3);
      renew_at_ = Clock::now() + milliseconds(options_.lock_ttl_ms / 5);
      return {};
    }
    if (Clock::now() > give_up) {
      return unavailable(fmt::format("another coordinator serves this Redis: {}", reply.text(1)),
                         "--redis", "stop it first, or pass --take-over");
    }
    std::this_thread::sleep_for(milliseconds(std::clamp<int64_t>(reply.integer(2), 10, 250)));
  }
}

Status RedisStore::renew_lock(int ttl_ms) {
  BA_ASSIGN_OR_RETURN(const RedisReply reply,
                      connection_.command(eval(kRenew, {}, {std::to_string(ttl_ms)})));
  changes_ = reply.integer();  // those that were made without an answer included
  renew_at_ = Clock::now() + milliseconds(options_.lock_ttl_ms / 5);
  return {};
}

Status RedisStore::renew_lock_when_due() {
  return Clock::now() < renew_at_ ? Status() : renew_lock(options_.lock_ttl_ms);
}

// ---- loading ------------------------------------------------------------------------------------

Result<std::vector<StoredSearch>> RedisStore::load() {
  BA_CHECK(!thread_.joinable(), "load() after the store has started");
  BA_ASSIGN_OR_RETURN(const RedisReply ids, connection_.command({"SMEMBERS", kSearches}));
  std::vector<std::string> sorted;
  for (size_t i = 0; i < ids.size(); ++i) sorted.push_back(ids.text(i));
  std::sort(sorted.begin(), sorted.end());
  std::vector<StoredSearch> searches;
  for (const std::string& id : sorted) {
    BA_RETURN_IF_ERROR(renew_lock_when_due());
    Result<StoredSearch> search = load_search(id);
    if (search.ok()) {
      searches.push_back(std::move(search).value());
    } else if (search.error().code == ErrorCode::kUnavailable) {
      return std::move(search).error();
    } else {
      spdlog::error("search '{}' cannot be read and is left alone: {}", id, search.error().message);
    }
  }
  thread_ = std::thread([this] { run(); });
  return searches;
}

Result<StoredSearch> RedisStore::load_search(const std::string& id) {
  StoredSearch stored;
  SearchRecord& record = stored.record;
  record.id = id;
  BA_ASSIGN_OR_RETURN(
      const RedisReply fields,
      connection_.command({"HMGET", key(id, "spec"), "spec", "fingerprint", "created_unix"}));
  BA_ASSIGN_OR_RETURN(const Json spec, parse_json(fields.text(0), "stored spec"));
  BA_ASSIGN_OR_RETURN(record.spec, search_spec_from_json(spec));
  BA_ASSIGN_OR_RETURN(const Json print, parse_json(fields.text(1), "stored fingerprint"));
  BA_ASSIGN_OR_RETURN(record.fingerprint, fingerprint_from_json(print));
  const auto outdated = differing_parts(fingerprint(record.spec), record.fingerprint);
  if (!outdated.empty() && outdated != std::vector<std::string>{"numerics version"}) {
    return same_fingerprint(fingerprint(record.spec), record.fingerprint, "the stored search")
        .error();
  }
  record.created_unix = std::strtoll(fields.text(2).c_str(), nullptr, 10);
  BA_ASSIGN_OR_RETURN(const RedisReply state, connection_.command({"GET", key(id, "state")}));
  BA_ASSIGN_OR_RETURN(const Json status, parse_json(state.text(), "stored state"));
  BA_ASSIGN_OR_RETURN(record.status, search_status_from_json(status));
  BA_ASSIGN_OR_RETURN(const RedisReply fence, connection_.command({"GET", key(id, "fence")}));
  if (!outdated.empty() && !has_ended(record.status.state)) {
    record.status.state = SearchState::kFailed;  // half old and half new scores compare to nothing
    record.status.error = mismatch("the search was begun by a release whose scores differ",
                                   "numerics version", "submit it again under another id");
  }
  record.fence = Fence(std::strtoll(fence.text().c_str(), nullptr, 10));

  BA_ASSIGN_OR_RETURN(const RedisReply leases, connection_.command({"HGETALL", key(id, "leases")}));
  for (size_t i = 0; i + 1 < leases.size(); i += 2) {
    BA_ASSIGN_OR_RETURN(const UnitId unit, parse_unit_name(leases.text(i)));
    BA_ASSIGN_OR_RETURN(const Lease lease, parse_lease(leases.text(i + 1)));
    record.leases[unit] = lease;
  }
  BA_RETURN_IF_ERROR(load_results(record));
  BA_ASSIGN_OR_RETURN(const RedisReply failures,
                      connection_.command({"HGETALL", key(id, "failures")}));
  for (size_t i = 0; i + 1 < failures.size(); i += 2) {
    BA_ASSIGN_OR_RETURN(const UnitId unit, parse_unit_name(failures.text(i)));
    BA_ASSIGN_OR_RETURN(const Json json, parse_json(failures.text(i + 1), "stored failure"));
    BA_ASSIGN_OR_RETURN(record.failures[unit], unit_failure_from_json(json));
  }
  BA_ASSIGN_OR_RETURN(const RedisReply has_tokens,
                      connection_.command({"EXISTS", key(id, "tokens")}));
  record.has_tokens = has_tokens.integer() == 1;
  if (record.has_tokens && !has_ended(record.status.state)) {
    BA_ASSIGN_OR_RETURN(stored.tokens, load_tokens(id, record.spec));
  }
  return stored;
}

// A page at a time: one reply with a million results would take several times their memory, and
// longer than the lock is valid.
Status RedisStore::load_results(SearchRecord& record) {
  const std::string results = key(record.id, "results");
  BA_ASSIGN_OR_RETURN(const RedisReply names, connection_.command({"HKEYS", results}));
  record.results.reserve(names.size());
  for (size_t begin = 0; begin < names.size(); begin += kResultsPerCommand) {
    BA_RETURN_IF_ERROR(renew_lock_when_due());
    const size_t end = std::min(begin + kResultsPerCommand, names.size());
    std::vector<std::string> command = {"HMGET", results};
    for (size_t i = begin; i < end; ++i) command.push_back(names.text(i));
    BA_ASSIGN_OR_RETURN(const RedisReply page, connection_.command(command));
    for (size_t i = begin; i < end; ++i) {
      BA_ASSIGN_OR_RETURN(const UnitId unit, parse_unit_name(names.text(i)));
      BA_ASSIGN_OR_RETURN(UnitResult result, unpack_unit_result(unit, page.text(i - begin)));
      BA_RETURN_IF_ERROR(validate(result, record.spec));
      record.results.push_back(std::move(result));
    }
  }
  return {};
}

Result<SharedTokens> RedisStore::load_tokens(const std::string& id, const SearchSpec& spec) {
  BA_ASSIGN_OR_RETURN(const RedisReply blobs,
                      connection_.command({"HMGET", key(id, "tokens"), "ids", "mask",
                                           "calibration_ids", "calibration_mask"}));
  auto tokens = std::make_shared<SearchTokens>();
  BA_ASSIGN_OR_RETURN(tokens->scored,
                      tokens_from_blobs(spec.sequences, spec.length, blobs.text(0), blobs.text(1)));
  if (spec.calibration_sequences > 0) {
    BA_ASSIGN_OR_RETURN(tokens->calibration,
                        tokens_from_blobs(spec.calibration_sequences, spec.calibration_length,
                                          blobs.text(2), blobs.text(3)));
  }
  return SharedTokens(std::move(tokens));
}

// ---- commands -----------------------------------------------------------------------------------

std::vector<std::string> RedisStore::eval(Script script, const std::vector<std::string>& keys,
                                          const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {"EVALSHA", script_sha_[script],
                                      std::to_string(keys.size() + 1), kLock};
  command.insert(command.end(), keys.begin(), keys.end());
  command.push_back(fmt::format("{}/{}/{}", fence_, changes_, connection_number_));
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::vector<std::vector<std::string>> RedisStore::put_search_commands(
    const PutSearch& change) const {
  const SearchRecord& record = change.record;
  std::vector<std::string> keys = {kSearches};
  for (const std::string& name : all_keys(record.id)) keys.push_back(name);
  const std::vector<std::string> head = {
      record.id, json_text(to_json(record.spec)), json_text(to_json(record.fingerprint)),
      std::to_string(record.created_unix), json_text(to_json(record.status))};
  std::vector<std::string> blobs = {"0"};
  if (change.tokens != nullptr) {
    const SearchTokens& tokens = *change.tokens;
    blobs = {"4",
             "ids",
             ids_to_blob(tokens.scored),
             "mask",
             mask_to_blob(tokens.scored),
             "calibration_ids",
             ids_to_blob(tokens.calibration),
             "calibration_mask",
             mask_to_blob(tokens.calibration)};
  }
  std::vector<std::vector<std::string>> commands;
  size_t next = 0;
  do {
    std::vector<std::string> arguments = head;
    arguments.insert(arguments.end(), blobs.begin(), blobs.end());
    blobs = {"0"};  // once is enough
    const size_t end = std::min(next + kResultsPerCommand, record.results.size());
    for (; next < end; ++next) {
      arguments.push_back(unit_name(record.results[next].unit));
      arguments.push_back(pack(record.results[next]));
    }
    commands.push_back(eval(kPutSearch, keys, arguments));
  } while (next < record.results.size());
  return commands;
}

std::vector<std::vector<std::string>> RedisStore::commands(const StoreOp& op) const {
  if (const auto* put = std::get_if<PutSearch>(&op.change)) return put_search_commands(*put);
  if (const auto* put = std::get_if<PutStatus>(&op.change)) {
    const std::string& id = put->search;
    return {eval(kPutStatus, {key(id, "spec"), key(id, "state"), key(id, "events")},
                 {json_text(to_json(put->status))})};
  }
  if (const auto* put = std::get_if<PutFailure>(&op.change)) {
    return {eval(kPutFailure, {key(put->search, "spec"), key(put->search, "failures")},
                 {unit_name(put->unit), json_text(to_json(put->failure))})};
  }
  if (const auto* clear = std::get_if<ClearFailures>(&op.change)) {
    return {eval(kClearFailures, {key(clear->search, "failures")}, {})};
  }
  const std::string& id = std::get<DeleteSearch>(op.change).search;
  std::vector<std::string> keys = {kSearches};
  for (const std::string& name : all_keys(id)) keys.push_back(name);
  return {eval(kDelete, keys, {id})};
}

std::vector<std::string> RedisStore::change_units_command(std::span<const StoreOp> changes) const {
  std::vector<std::string> keys;
  std::vector<std::string> arguments;
  std::map<std::string, std::string> first_keys;  // search → index of its first key in the script
  const auto first_key = [&](const std::string& search) -> const std::string& {
    const auto [entry, is_new] = first_keys.try_emplace(search);
    if (is_new) {
      entry->second = std::to_string(keys.size() + 2);  // after the lock, counted from 1
      for (const char* name : {"spec", "fence", "leases", "results", "events"}) {
        keys.push_back(key(search, name));
      }
    }
    return entry->second;
  };
  const auto add = [&](const char* what, const auto& change, std::string first,
                       std::string second) {
    arguments.insert(arguments.end(), {what, first_key(change.search), unit_name(change.unit),
                                       std::move(first), std::move(second)});
  };
  for (const StoreOp& op : changes) {
    if (const auto* lease = std::get_if<PutLease>(&op.change)) {
      add("lease", *lease, std::to_string(lease->lease.fence.value), lease->lease.worker.value);
    } else if (const auto* drop = std::get_if<DropLease>(&op.change)) {
      add("drop", *drop, std::to_string(drop->fence.value), "");
    } else {
      const auto& result = std::get<PutResult>(op.change);
      add("result", result, result.packed, "");
    }
  }
  return eval(kChangeUnits, keys, arguments);
}

// ---- the thread ---------------------------------------------------------------------------------

bool RedisStore::put(StoreOp op) {
  const std::lock_guard lock(mutex_);
  BA_CHECK(!closing_, "put() after close()");
  if (queue_.size() + in_flight_ >= kCapacity) return false;
  queue_bytes_ += result_bytes(op);
  queue_.push_back(std::move(op));
  changed_.notify_all();
  return true;
}

bool RedisStore::has_room(size_t count) const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + in_flight_ + count <= kCapacity && queue_bytes_ <= options_.capacity_bytes;
}

bool RedisStore::close(int timeout_ms) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  if (!thread_.joinable()) return true;
  const bool stopped =
      changed_.wait_for(lock, milliseconds(timeout_ms), [this] { return stopped_; });
  lock.unlock();
  if (stopped) thread_.join();
  return stopped && drained_;
}

void RedisStore::wait_for_work(std::vector<StoreOp>& batch) {
  std::unique_lock lock(mutex_);
  in_flight_ = batch.size();
  changed_.wait_until(lock, renew_at_,
                      [&] { return !queue_.empty() || !batch.empty() || closing_; });
  size_t bytes = 0;
  for (const StoreOp& op : batch) bytes += result_bytes(op);
  while (!queue_.empty() && batch.size() < kMaxBatch && bytes < kMaxBatchBytes) {
    bytes += result_bytes(queue_.front());
    queue_bytes_ -= result_bytes(queue_.front());
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  in_flight_ = batch.size();
}

bool RedisStore::closed_and_drained(const std::vector<StoreOp>& batch) {
  const std::lock_guard lock(mutex_);
  return closing_ && queue_.empty() && batch.empty();
}

void RedisStore::run() {
  std::vector<StoreOp> batch;
  bool drained = false;
  while (!drained) {
    wait_for_work(batch);
    Status status = renew_lock_when_due();
    if (status.ok()) status = run_batch(batch);
    if (!status.ok() && !recover(status.error())) break;
    drained = status.ok() && closed_and_drained(batch);
  }
  if (drained && !renew_lock(0).ok()) spdlog::warn("the lock in Redis could not be given back");
  const std::lock_guard lock(mutex_);
  in_flight_ = 0;
  drained_ = drained;
  stopped_ = true;
  changed_.notify_all();
}

// Runs the changes as one pipeline; those that were answered leave `batch`.
Status RedisStore::run_batch(std::vector<StoreOp>& batch) {
  const std::span<const StoreOp> changes(batch);
  std::vector<Call> calls;
  for (size_t sent = 0; sent < changes.size(); sent += calls.back().changes) {
    BA_ASSIGN_OR_RETURN(const Call call, send_front(changes.subspan(sent)));
    calls.push_back(call);
  }
  size_t done = 0;
  Status status;
  for (const Call& call : calls) {
    status = receive(call, changes.subspan(done, call.changes));
    if (!status.ok()) break;
    done += call.changes;
  }
  batch.erase(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(done));
  return status;
}

Result<RedisStore::Call> RedisStore::send_front(std::span<const StoreOp> changes) {
  const Call call{length_of_first_call(changes), 1};
  if (changes_a_unit(changes.front())) {
    BA_RETURN_IF_ERROR(connection_.append(change_units_command(changes.first(call.changes))));
    return call;
  }
  const auto list = commands(changes.front());
  for (const auto& command : list) BA_RETURN_IF_ERROR(connection_.append(command));
  return Call{1, list.size()};
}

// Reads the answers to one call and tells what has become of its changes.
Status RedisStore::receive(const Call& call, std::span<const StoreOp> changes) {
  for (size_t i = 0; i < call.replies; ++i) {
    BA_ASSIGN_OR_RETURN(const RedisReply reply, connection_.read());
    if (reply.is_error()) return unavailable("Redis: " + reply.text());
    ++changes_;  // a script call is one
    if (i + 1 < call.replies) continue;
    for (size_t k = 0; k < changes.size(); ++k) {
      callback_(to_done(changes[k].token, reply.child(k)));
    }
  }
  return {};
}

bool RedisStore::recover(const Error& cause) {
  Error reason = cause;
  bool told = false;
  for (int pause_ms = 50;; pause_ms = std::min(2 * pause_ms, kMaxPauseMs)) {
    const size_t fenced = reason.message.find(kFenced);
    if (fenced != std::string::npos) {
      callback_(StoreFenced{reason.message.substr(fenced + std::string(kFenced).size())});
      return false;
    }
    if (!told) callback_(StoreLost{reason.message});
    told = true;
    connection_.disconnect();
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, milliseconds(pause_ms), [this] { return closing_; });
      if (closing_) return false;
    }
    Status status = prepare();
    if (status.ok()) status = renew_lock(options_.lock_ttl_ms);
    if (status.ok()) {
      callback_(StoreBack{});
      return true;
    }
    reason = status.error();
  }
}

}  // namespace bitalloc
