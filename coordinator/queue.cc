#include "coordinator/queue.h"

#include <algorithm>
#include <cmath>

#include "coordinator/schedule.h"

namespace bitalloc {
namespace {

constexpr int64_t kMaxCredits = 64;  // of one worker

bool same_values(const UnitResult& a, const UnitResult& b) { return pack(a) == pack(b); }

std::string worker_text(const Json& info, const WorkerEpoch& epoch) {
  const auto host = json_field_or<std::string>(info, "host", "hello", "");
  const auto device = json_field_or<std::string>(info, "device", "hello", "");
  return fmt::format("{} ({} {})", epoch.value, host.ok() ? *host : "", device.ok() ? *device : "");
}

}  // namespace

double unit_weight(const UnitId& unit, const SearchSpec& spec) {
  if (unit.kind == UnitKind::kCalibrate) return static_cast<double>(spec.model.num_layers);
  double weight = 0;
  for (int64_t row = unit.row_begin; row < unit.row_end; ++row) {
    const int64_t first = spec.kind == JobKind::kSearch ? spec.sites[row].layer : 0;
    weight += static_cast<double>((spec.model.num_layers - first) * spec.num_columns());
  }
  return weight;
}

Search::Search(SearchRecord record)
    : id(std::move(record.id)),
      spec(std::move(record.spec)),
      fingerprint(std::move(record.fingerprint)),
      created_unix(record.created_unix),
      status(std::move(record.status)),
      fence(record.fence),
      has_tokens(record.has_tokens),
      table(spec),
      units(table.units().size()) {
  for (size_t slot = 0; slot < units.size(); ++slot) index[table.units()[slot]] = slot;
}

Queue::Queue(QueueOptions options) : options_(options) {}

Actions Queue::handle(const Event& event, TimeMs now) {
  now_ = now;
  actions_.clear();
  std::visit([this](const auto& e) { on(e); }, event);
  schedule();
  return std::move(actions_);
}

const Search* Queue::find(const std::string& id) const {
  const auto found = searches_.find(id);
  return found == searches_.end() ? nullptr : &found->second;
}

Search* Queue::find_mutable(const std::string& id) {
  const auto found = searches_.find(id);
  return found == searches_.end() ? nullptr : &found->second;
}

Worker* Queue::heard(const WorkerEpoch& epoch) {
  const auto found = workers_.find(epoch);
  if (found == workers_.end()) return nullptr;
  found->second.heard = now_;
  return &found->second;
}

uint64_t Queue::persist(decltype(StoreOp::change) change, Pending pending) {
  const uint64_t token = next_token_++;
  pending_.emplace(token, std::move(pending));
  act(action::Persist{StoreOp{token, std::move(change)}});
  return token;
}

void Queue::persist_status(Search& search, const SearchStatus& status, StatusPending pending) {
  persist(PutStatus{search.id, status}, std::move(pending));
}

// ---- searches -----------------------------------------------------------------------------------

void Queue::on(const event::SearchLoaded& event) {
  Search search(event.record);
  for (const UnitResult& result : event.record.results) count_result(search, result);
  auto& placed = searches_.emplace(search.id, std::move(search)).first->second;
  for (const auto& [unit, lease] : event.record.leases) {
    const auto slot = placed.index.find(unit);
    if (slot == placed.index.end() || placed.units[slot->second].done) continue;
    set_lease(placed, slot->second,
              HeldLease{lease.worker, lease.fence, now_ + options_.restart_grace_ms, true});
  }
  maybe_finish(placed);
}

void Queue::on(const event::Submit& event) {
  const auto refuse = [&](Error error) { act(action::ReplyError{event.request, error}); };
  if (store_lost_) return refuse(unavailable("Redis cannot be reached: " + store_reason_));
  if (deleting_.contains(event.record.id)) {
    return refuse(unavailable(
        fmt::format("search '{}' is being deleted; try again in a moment", event.record.id)));
  }
  if (Search* search = find_mutable(event.record.id)) return resubmit(*search, event);
  if (searches_.size() >= options_.max_searches) {
    return refuse(resource_exhausted(fmt::format("there are {} searches already", searches_.size()),
                                     "", "delete some: `bitalloc delete ID`"));
  }
  create(event);
}

void Queue::create(const event::Submit& event) {
  SearchRecord record = event.record;
  record.has_tokens = event.tokens != nullptr;
  record.status.state = record.has_tokens ? SearchState::kQueued : SearchState::kPaused;
  Search search(record);
  searches_.emplace(record.id, std::move(search));
  SearchPending pending{record.id, record.results, event.request, true};
  persist(PutSearch{std::move(record), event.tokens}, std::move(pending));
}

void Queue::resubmit(Search& search, const event::Submit& event) {
  const SearchRecord& wanted = event.record;
  const Status same = same_fingerprint(wanted.fingerprint, search.fingerprint,
                                       fmt::format("search '{}'", search.id));
  if (!same.ok()) return act(action::ReplyError{event.request, same.error()});
  for (const UnitResult& result : wanted.results) {
    if (search.table.has(result.unit) && !same_values(search.table.result(result.unit), result)) {
      const Error error =
          mismatch(fmt::format("the imported result of {} differs from the one search '{}' has",
                               unit_name(result.unit), search.id),
                   "results", "one of the two was altered; import it under another id");
      return act(action::ReplyError{event.request, error});
    }
  }
  if (wanted.spec.kind != search.spec.kind) {
    return act(action::ReplyError{
        event.request, mismatch(fmt::format("search '{}' is of another kind", search.id), "kind")});
  }
  // What is outside the fingerprint follows the latest submission: a moved model, another budget.
  search.spec.model.path = wanted.spec.model.path;
  search.spec.model.name = wanted.spec.model.name;
  search.spec.disabled_sites = wanted.spec.disabled_sites;
  search.spec.recipe = wanted.spec.recipe;
  search.spec.effective_bits = wanted.spec.effective_bits;
  const bool waits_for_tokens = search.status.state == SearchState::kPaused && !search.has_tokens;
  const bool stopped =
      search.status.state == SearchState::kFailed || search.status.state == SearchState::kCancelled;
  if (event.tokens != nullptr) {
    search.has_tokens = true;
    if (waits_for_tokens || stopped) {
      search.status.state = SearchState::kQueued;
      search.status.error.reset();
      search.excluded.clear();
      for (UnitState& unit : search.units) unit.attempts = unit.losses = 0;
    }
  }
  SearchRecord record{search.id,     search.spec,  search.fingerprint, search.created_unix,
                      search.status, search.fence, search.has_tokens,  {},
                      wanted.results};
  persist(PutSearch{std::move(record), event.tokens},
          SearchPending{search.id, wanted.results, event.request, false});
  if (has_ended(search.status.state)) act(action::Forget{search.id});
}

Status Queue::acceptable(const Search& search, const event::Change& event) const {
  using Kind = event::Change::Kind;
  if (store_lost_) return unavailable("Redis cannot be reached: " + store_reason_);
  if (event.kind == Kind::kResume && !search.has_tokens &&
      search.status.state == SearchState::kPaused) {
    return invalid_argument(fmt::format("search '{}' was imported without its tokens", search.id),
                            "id", "submit it with the model and the data to go on");
  }
  const bool needs_life = event.kind == Kind::kPause || event.kind == Kind::kResume;
  if (needs_life && has_ended(search.status.state)) {
    return invalid_argument(
        fmt::format("search '{}' is {}", search.id, search_state_name(search.status.state)), "id",
        search.status.state == SearchState::kDone ? "" : "submit it again to go on");
  }
  return {};
}

void Queue::on(const event::Change& event) {
  using Kind = event::Change::Kind;
  Search* search = find_mutable(event.search);
  if (search == nullptr) {
    return act(action::ReplyError{
        event.request, not_found(fmt::format("there is no search '{}'", event.search), "id",
                                 "`bitalloc list` shows what there is")});
  }
  const Status good = acceptable(*search, event);
  if (!good.ok()) return act(action::ReplyError{event.request, good.error()});
  SearchState& state = search->status.state;
  const bool alive = !has_ended(state) && !search->finishing;
  if (event.kind == Kind::kPause && alive) state = SearchState::kPaused;
  if (event.kind == Kind::kResume && state == SearchState::kPaused) state = SearchState::kQueued;
  if (event.kind == Kind::kReprioritize) search->status.priority = event.priority;
  if (event.kind == Kind::kCancel && alive) {
    state = SearchState::kCancelled;
    revoke_all(*search);
    act(action::Forget{search->id});
  }
  persist_status(*search, search->status, StatusPending{search->id, event.request});
}

void Queue::on(const event::Delete& event) {
  Search* search = find_mutable(event.search);
  if (search == nullptr || store_lost_) {
    const Error error = store_lost_
                            ? unavailable("Redis cannot be reached: " + store_reason_)
                            : not_found(fmt::format("there is no search '{}'", event.search), "id");
    return act(action::ReplyError{event.request, error});
  }
  revoke_all(*search);
  act(action::Forget{search->id});
  deleting_.insert(search->id);
  persist(DeleteSearch{search->id}, DeletePending{search->id, event.request});
  searches_.erase(event.search);
}

void Queue::revoke_all(Search& search) {
  for (size_t slot = 0; slot < search.units.size(); ++slot) {
    if (!search.units[slot].lease) continue;
    const HeldLease lease = *search.units[slot].lease;
    act(action::SendRevoke{lease.worker, search.id, search.table.units()[slot], lease.fence});
    release(search, slot);
  }
}

void Queue::fail_search(Search& search, Error error) {
  act(action::Log{false, fmt::format("search '{}' failed: {}", search.id, error.message)});
  search.status.state = SearchState::kFailed;
  search.status.error = std::move(error);
  revoke_all(search);
  act(action::Forget{search.id});
  persist_status(search, search.status, StatusPending{search.id, std::nullopt});
}

// A complete search first gets its checkpoint, then the durable state `done`, and only then is
// anybody told.
void Queue::maybe_finish(Search& search) {
  if (search.finishing || has_ended(search.status.state) || !search.table.complete()) return;
  search.finishing = true;
  act(action::WriteCheckpoint{search.id});
}

void Queue::on(const event::CheckpointWritten& event) {
  Search* search = find_mutable(event.search);
  if (search == nullptr || !search->finishing) return;
  SearchStatus status = search->status;
  status.state = SearchState::kDone;
  persist_status(*search, status, StatusPending{search->id, std::nullopt, true});
}

// ---- workers ------------------------------------------------------------------------------------

void Queue::on(const event::WorkerHello& event) {
  if (!workers_.contains(event.worker) && workers_.size() >= options_.max_workers) {
    return act(action::Log{false, fmt::format("worker {} turned away: there are {} already",
                                              event.worker.value, workers_.size())});
  }
  Worker& worker = workers_[event.worker];
  worker.info = event.info;
  worker.heard = now_;
}

void Queue::on(const event::WorkerReady& event) {
  Worker* worker = heard(event.worker);
  if (worker == nullptr) return;
  worker->credits = std::clamp<int64_t>(event.credits, 0, kMaxCredits);
  worker->largest_credits = std::max(worker->largest_credits, worker->credits);
}

void Queue::on(const event::WorkerHeartbeat& event) {
  if (heard(event.worker) == nullptr) return;
  for (const auto& held : event.units) renew(held, event.worker);
  drop_unconfirmed(event);
}

// A lease that an earlier coordinator wrote down, but whose unit it did not get to send.
void Queue::drop_unconfirmed(const event::WorkerHeartbeat& event) {
  const auto mine = held_.find(event.worker);
  if (mine == held_.end()) return;
  const std::set<UnitKey> units = mine->second;
  for (const UnitKey& key : units) {
    Search& search = searches_.at(key.first);
    const size_t slot = search.index.at(key.second);
    if (search.units[slot].lease->restored) release(search, slot);
  }
}

void Queue::renew(const event::WorkerHeartbeat::Held& held, const WorkerEpoch& worker) {
  const auto revoke = [&] { act(action::SendRevoke{worker, held.search, held.unit, held.fence}); };
  Search* search = find_mutable(held.search);
  if (search == nullptr || has_ended(search->status.state)) return revoke();
  const auto slot = search->index.find(held.unit);
  if (slot == search->index.end() || held.fence > search->fence) return revoke();
  UnitState& unit = search->units[slot->second];
  if (unit.storing != 0) return;
  if (unit.done) return revoke();
  if (unit.lease && unit.lease->worker != worker) return revoke();
  if (unit.lease) {
    unit.lease->deadline = now_ + options_.lease_ms;
    unit.lease->restored = false;
    return;
  }
  // Nobody's, and somebody is at it already (a lease that ran out, a restart): it stays theirs.
  if (store_lost_ || stopping_ || leases_ >= options_.max_leases) return;
  set_lease(*search, slot->second, HeldLease{worker, held.fence, now_ + options_.lease_ms, false});
  const Lease lease{worker, held.fence};
  persist(PutLease{search->id, held.unit, lease},
          LeasePending{search->id, held.unit, lease, false});
}

void Queue::on(const event::WorkerResult& event) {
  heard(event.worker);
  Search* search = find_mutable(event.search);
  const UnitId& unit = event.result.unit;
  // A revoke makes the worker drop the result; without one it would send it for ever.
  const auto drop = [&] { act(action::SendRevoke{event.worker, event.search, unit, event.fence}); };
  if (search == nullptr || !search->index.contains(unit)) return drop();
  const size_t slot = search->index.at(unit);
  const Status good = validate(event.result, search->spec);
  if (good.ok()) return take_result(*search, slot, event);
  act(action::SendReject{event.worker, event.search, unit, event.fence, event.correlation_id,
                         good.error()});
  drop();
  const auto& lease = search->units[slot].lease;
  if (lease && lease->worker == event.worker) {
    unit_failed(*search, slot, event.worker, good.error());
  }
}

void Queue::take_result(Search& search, size_t slot, const event::WorkerResult& event) {
  UnitState& unit = search.units[slot];
  const UnitId& id = event.result.unit;
  if (unit.done) {
    if (search.table.add(event.result) == ScoreTable::Added::kConflict) {
      report_conflict(search, id, event.worker);
    }
    return act(action::SendAck{event.worker, search.id, id, event.fence, event.correlation_id});
  }
  const Waiter waiter{event.worker, event.fence, event.correlation_id};
  if (unit.storing != 0) {
    auto& pending = std::get<ResultPending>(pending_.at(unit.storing));
    if (!same_values(pending.result, event.result)) report_conflict(search, id, event.worker);
    if (pending.waiters.size() < 16) pending.waiters.push_back(waiter);
    return;
  }
  if (unit.lease) {
    const HeldLease lease = *unit.lease;
    if (lease.worker != event.worker) {
      act(action::SendRevoke{lease.worker, search.id, id, lease.fence});
    }
    clear_lease(search, slot);
  }
  if (std::isfinite(event.seconds) && event.seconds > 0) {
    ++search.timing.count;
    search.timing.seconds += event.seconds;
    search.timing.weight += unit_weight(id, search.spec);
  }
  ++search.storing;
  unit.storing = persist(PutResult{search.id, id, pack(event.result)},
                         ResultPending{search.id, event.result, {waiter}});
}

void Queue::report_conflict(Search& search, const UnitId& unit, const WorkerEpoch& worker) {
  ++search.conflicts;
  act(action::Log{true, fmt::format("two results of {} of search '{}' differ (the second is from "
                                    "worker {}); the first one stays",
                                    unit_name(unit), search.id, worker.value)});
}

void Queue::on(const event::WorkerFail& event) {
  heard(event.worker);
  Search* search = find_mutable(event.search);
  if (search == nullptr || has_ended(search->status.state)) return;
  const auto slot = search->index.find(event.unit);
  if (slot == search->index.end()) return;
  const auto& lease = search->units[slot->second].lease;
  if (!lease || lease->worker != event.worker || lease->fence != event.fence) return;

  if (event.error.code == ErrorCode::kMismatch) {
    release(*search, slot->second);
    search->excluded.insert(event.worker);
    search->exclusion = event.error.message;
    const bool all = std::all_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
      return search->excluded.contains(entry.first);
    });
    if (all) fail_search(*search, event.error);
  } else if (!event.retryable) {
    release(*search, slot->second);
    fail_search(*search, event.error);
  } else {
    unit_failed(*search, slot->second, event.worker, event.error);
  }
}

void Queue::unit_failed(Search& search, size_t slot, const WorkerEpoch& worker,
                        const Error& error) {
  release(search, slot);
  UnitState& unit = search.units[slot];
  ++unit.attempts;
  unit.failed_on = worker;
  unit.not_before = now_ + (options_.backoff_ms << std::min(unit.attempts - 1, 10));
  const std::string name = unit_name(search.table.units()[slot]);
  act(action::Log{
      false, fmt::format("{} of search '{}' failed on worker {} ({} of {}): {}", name, search.id,
                         worker.value, unit.attempts, options_.max_attempts, error.message)});
  if (unit.attempts >= options_.max_attempts) {
    fail_search(search,
                Error(error).with_context(fmt::format("{} failed {} times", name, unit.attempts)));
  }
}

void Queue::on(const event::WorkerBye& event) { remove_worker(event.worker, false); }

void Queue::remove_worker(const WorkerEpoch& epoch, bool vanished) {
  const auto found = workers_.find(epoch);
  if (found != workers_.end()) {
    act(action::Log{false, fmt::format("worker {} {}", worker_text(found->second.info, epoch),
                                       vanished ? "has not been heard of for too long" : "left")});
    workers_.erase(found);
  }
  const std::set<UnitKey> units = held_.contains(epoch) ? held_.at(epoch) : std::set<UnitKey>();
  for (const UnitKey& key : units) {
    if (vanished) {
      lose(key);
    } else if (Search* search = find_mutable(key.first)) {
      release(*search, search->index.at(key.second));
    }
  }
  for (auto& [id, search] : searches_) search.excluded.erase(epoch);
}

// The worker of a leased unit has vanished. A unit that takes every worker with it must not do so
// for ever.
void Queue::lose(const UnitKey& key) {
  Search* search = find_mutable(key.first);
  if (search == nullptr) return;
  const size_t slot = search->index.at(key.second);
  if (!search->units[slot].lease) return;  // the search has failed meanwhile
  release(*search, slot);
  const int losses = ++search->units[slot].losses;
  if (losses < options_.max_losses || has_ended(search->status.state)) return;
  fail_search(*search,
              unavailable(fmt::format("{} workers in a row vanished while they held {}", losses,
                                      unit_name(key.second)),
                          "", "see the workers' logs (out of memory?), then submit it again"));
}

// This process was frozen, or its machine was: nobody could be heard meanwhile.
void Queue::forgive_stall() {
  const TimeMs stall = ticked_ ? now_ - *ticked_ - options_.stall_ms : 0;
  ticked_ = now_;
  if (stall <= 0) return;
  for (auto& [epoch, worker] : workers_) worker.heard += stall;
  for (const auto& [epoch, units] : held_) {
    for (const UnitKey& key : units) {
      Search& search = searches_.at(key.first);
      search.units[search.index.at(key.second)].lease->deadline += stall;
    }
  }
}

void Queue::on(const event::Tick&) {
  forgive_stall();
  std::vector<WorkerEpoch> gone;
  for (const auto& [epoch, worker] : workers_) {
    if (now_ - worker.heard > options_.liveness_ms) gone.push_back(epoch);
  }
  for (const WorkerEpoch& epoch : gone) remove_worker(epoch, true);
  expire_leases();
}

void Queue::expire_leases() {
  std::vector<UnitKey> expired;
  for (const auto& [epoch, units] : held_) {
    for (const UnitKey& key : units) {
      const Search& search = searches_.at(key.first);
      if (search.units[search.index.at(key.second)].lease->deadline < now_) expired.push_back(key);
    }
  }
  for (const UnitKey& key : expired) {
    Search& search = searches_.at(key.first);
    const size_t slot = search.index.at(key.second);
    const HeldLease lease = *search.units[slot].lease;
    act(action::SendRevoke{lease.worker, key.first, key.second, lease.fence});
    release(search, slot);
  }
}

void Queue::on(const event::Stop&) { stopping_ = true; }

// ---- leases -------------------------------------------------------------------------------------

void Queue::schedule() {
  if (store_lost_ || stopping_) return;
  // One unit each in turn, so that the first worker does not take everything.
  for (bool granted = true; granted;) {
    granted = false;
    for (auto& [epoch, worker] : workers_) granted |= grant_one(epoch, worker);
  }
}

bool Queue::grant_one(const WorkerEpoch& epoch, Worker& worker) {
  const auto mine = held_.find(epoch);
  const int64_t holds = mine == held_.end() ? 0 : std::ssize(mine->second);
  // A worker that says `ready` while a unit is on its way to it does not know of that unit yet.
  if (worker.credits <= 0 || holds >= worker.largest_credits) return false;
  if (leases_ >= options_.max_leases) return false;
  for (const Search* search : serving_order(searches_)) {
    const auto slot = pick_unit(*search, epoch, workers_, now_);
    if (!slot) continue;
    grant(searches_.at(search->id), *slot, epoch, worker);
    return true;
  }
  return false;
}

void Queue::grant(Search& search, size_t slot, const WorkerEpoch& epoch, Worker& worker) {
  const UnitId unit = search.table.units()[slot];
  ++search.fence.value;
  --worker.credits;
  worker.last_search = search.id;
  worker.last_kind = unit.kind;
  worker.last_batch = unit.batch;
  set_lease(search, slot, HeldLease{epoch, search.fence, now_ + options_.lease_ms, false});
  const Lease lease{epoch, search.fence};
  persist(PutLease{search.id, unit, lease}, LeasePending{search.id, unit, lease});
  if (search.status.state == SearchState::kQueued) {
    search.status.state = SearchState::kRunning;
    persist_status(search, search.status, StatusPending{search.id, std::nullopt});
  }
}

void Queue::set_lease(Search& search, size_t slot, HeldLease lease) {
  held_[lease.worker].insert({search.id, search.table.units()[slot]});
  search.units[slot].lease = std::move(lease);
  ++search.leased;
  ++leases_;
}

void Queue::clear_lease(Search& search, size_t slot) {
  const WorkerEpoch worker = search.units[slot].lease->worker;
  const auto holder = held_.find(worker);
  holder->second.erase({search.id, search.table.units()[slot]});
  if (holder->second.empty()) held_.erase(holder);
  search.units[slot].lease.reset();
  --search.leased;
  --leases_;
}

void Queue::release(Search& search, size_t slot) {
  const Fence fence = search.units[slot].lease->fence;
  clear_lease(search, slot);
  persist(DropLease{search.id, search.table.units()[slot], fence}, std::monostate());
}

// ---- store --------------------------------------------------------------------------------------

void Queue::on(const StoreLost& event) {
  store_lost_ = true;
  store_reason_ = event.reason;
}

void Queue::on(const StoreBack&) { store_lost_ = false; }

void Queue::on(const StoreDone& event) {
  auto node = pending_.extract(event.token);
  if (node.empty()) return;
  std::visit([&](auto& pending) { stored(pending, event); }, node.mapped());
}

void Queue::stored(ResultPending& pending, const StoreDone& event) {
  Search* search = find_mutable(pending.search);
  const UnitId unit = pending.result.unit;
  if (search != nullptr) {
    UnitState& state = search->units[search->index.at(unit)];
    state.storing = 0;
    --search->storing;
    if (event.outcome == StoreDone::Outcome::kConflict) {
      report_conflict(*search, unit, pending.waiters.front().worker);
      Result<UnitResult> first = unpack_unit_result(unit, event.stored);
      if (first.ok()) pending.result = std::move(first).value();
    }
    count_result(*search, pending.result);
    act(action::Publish{search->id});
    maybe_finish(*search);
  }
  for (const Waiter& waiter : pending.waiters) {
    const auto worker = workers_.find(waiter.worker);
    if (worker != workers_.end()) ++worker->second.units_done;
    act(action::SendAck{waiter.worker, pending.search, unit, waiter.fence, waiter.correlation_id});
  }
}

void Queue::count_result(Search& search, const UnitResult& result) {
  const auto slot = search.index.find(result.unit);
  if (slot == search.index.end()) return;
  search.table.add(result);
  search.units[slot->second].done = true;
}

void Queue::stored(const LeasePending& pending, const StoreDone&) {
  Search* search = find_mutable(pending.search);
  if (search == nullptr || !pending.send) return;
  const auto& lease = search->units[search->index.at(pending.unit)].lease;
  if (!lease || lease->fence != pending.lease.fence) return;  // released meanwhile
  act(action::SendUnit{lease->worker, search->id, pending.unit, lease->fence, options_.lease_ms});
  act(action::Publish{search->id});
}

void Queue::stored(const StatusPending& pending, const StoreDone&) {
  Search* search = find_mutable(pending.search);
  if (search != nullptr && pending.done) {
    search->status.state = SearchState::kDone;
    search->finishing = false;
    act(action::Forget{search->id});
  }
  if (pending.request) {
    if (search != nullptr) {
      act(action::ReplyStatus{*pending.request, pending.search});
    } else {
      act(action::ReplyError{*pending.request,
                             not_found(fmt::format("search '{}' was deleted", pending.search))});
    }
  }
  if (search != nullptr) act(action::Publish{search->id});
}

void Queue::stored(const SearchPending& pending, const StoreDone&) {
  Search* search = find_mutable(pending.search);
  if (search == nullptr) {
    return act(action::ReplyError{
        pending.request, not_found(fmt::format("search '{}' was deleted", pending.search))});
  }
  for (const UnitResult& result : pending.results) {
    const size_t slot = search->index.at(result.unit);
    if (search->units[slot].lease) release(*search, slot);
    count_result(*search, result);
  }
  // The file follows what a new submission says of a finished search (its budget, the model's
  // place).
  if (search->status.state == SearchState::kDone) act(action::WriteCheckpoint{search->id});
  act(action::ReplyStatus{pending.request, search->id, pending.created});
  act(action::Publish{search->id});
  maybe_finish(*search);
}

void Queue::stored(const DeletePending& pending, const StoreDone&) {
  deleting_.erase(pending.search);
  act(action::ReplyDeleted{pending.request, pending.search});
}

}  // namespace bitalloc
