#include "coordinator/queue.h"

#include <algorithm>
#include <charconv>

namespace bitalloc {
namespace {

constexpr size_t kUsualActions = 3;  // of one event: an Action is large, so moving them costs

int64_t numerics_version_of(const Fingerprint& fingerprint) {
  int64_t version = kNumericsVersion;
  const auto part = fingerprint.parts.find("numerics version");
  if (part == fingerprint.parts.end()) return version;
  const std::string& text = part->second;
  std::from_chars(text.data(), text.data() + text.size(), version);
  return version;
}

Error exhausted_error(const Search& search) {
  const size_t first = *search.set_aside.begin();
  const UnitFailure& failure = search.troubles.at(first).failure;
  Error error = failure.error;
  error.message =
      fmt::format("{} of {} units failed; the first, {}, {} times: {}", search.set_aside.size(),
                  search.table.units_total(), unit_name(search.unit(first)),
                  failure.attempts + failure.losses, failure.error.message);
  if (error.hint.empty()) error.hint = "mend the cause, then submit it again: only those run";
  return error;
}

}  // namespace

bool same_values(const UnitResult& a, const UnitResult& b) { return pack(a) == pack(b); }

void Timing::add(double unit_seconds, double unit_weight) {
  ++count;
  seconds += unit_seconds;
  weight += unit_weight;
}

double unit_weight(const UnitId& unit, const SearchSpec& spec) {
  if (unit.kind == UnitKind::kCalibrate) return static_cast<double>(spec.model.num_layers);
  double weight = 0;
  for (int64_t row = unit.row_begin; row < unit.row_end; ++row) {
    const int64_t first = spec.kind == JobKind::kSearch ? spec.sites[row].layer : 0;
    weight += static_cast<double>((spec.model.num_layers - first) * spec.num_columns());
  }
  return weight;
}

// ---- the units of a search ----------------------------------------------------------------------

Search::Search(const SearchRecord& record)
    : id(record.id),
      spec(record.spec),
      fingerprint(record.fingerprint),
      numerics_version(numerics_version_of(fingerprint)),
      created_unix(record.created_unix),
      status(record.status),
      fence(record.fence),
      has_tokens(record.has_tokens),
      table(spec),
      layout(spec),
      calibrations_left(layout.num_calibration_units()),
      phases(layout.num_units(), UnitPhase::kOpen),
      fresh(layout) {
  turn.created_unix = created_unix;
  turn.priority = status.priority;
  turn.share = status.share;
  for (size_t slot = 0; slot < phases.size(); ++slot) {
    weight_left += weight(slot);
    enter_phase(slot);
  }
}

void Search::leave_phase(size_t slot) {
  switch (phases[slot]) {
    case UnitPhase::kOpen:
      fresh.erase(slot);
      if (const auto trouble = troubles.find(slot); trouble != troubles.end()) {
        retries.erase(trouble->second.group(), slot);
      }
      break;
    case UnitPhase::kResting:
      resting.erase(slot);
      break;
    case UnitPhase::kLeased:
      --leased;
      break;
    case UnitPhase::kStoring:
      --storing;
      storing_tokens.erase(slot);
      break;
    case UnitPhase::kSetAside:
      set_aside.erase(slot);
      break;
    case UnitPhase::kDone:
      BA_CHECK(false, "a unit that is done is touched again");
  }
}

void Search::enter_phase(size_t slot) {
  const bool calibrates = slot < layout.num_calibration_units();
  switch (phases[slot]) {
    case UnitPhase::kOpen:
      // Also one that has failed: a worker may still hold a unit of a deleted search of this name.
      if (!calibrates && calibrations_left > 0) break;
      if (const auto trouble = troubles.find(slot); trouble != troubles.end()) {
        retries.insert(trouble->second.group(), slot);
      } else {
        fresh.insert(slot);
      }
      break;
    case UnitPhase::kResting:
      resting.insert(slot);
      break;
    case UnitPhase::kLeased:
      ++leased;
      break;
    case UnitPhase::kStoring:
      ++storing;
      break;
    case UnitPhase::kSetAside:
      set_aside.insert(slot);
      break;
    case UnitPhase::kDone:
      break;
  }
}

void Search::set_phase(size_t slot, UnitPhase phase) {
  leave_phase(slot);
  phases[slot] = phase;
  enter_phase(slot);
}

void Search::count(size_t slot, const UnitResult& result) {
  table.add(result);
  set_phase(slot, UnitPhase::kDone);
  troubles.erase(slot);
  weight_left -= weight(slot);
  if (slot >= layout.num_calibration_units() || --calibrations_left > 0) return;
  for (size_t score = layout.num_calibration_units(); score < phases.size(); ++score) {
    if (phases[score] == UnitPhase::kOpen) enter_phase(score);
  }
}

void Search::forgive(size_t slot) {
  const UnitPhase phase = phases[slot];
  const bool is_underway = phase == UnitPhase::kLeased || phase == UnitPhase::kStoring;
  if (!is_underway) leave_phase(slot);
  troubles.erase(slot);
  if (is_underway) return;
  phases[slot] = UnitPhase::kOpen;
  enter_phase(slot);
}

SearchStatus Search::status_to_store() const {
  SearchStatus stored = status;
  if (done_is_sent) stored.state = SearchState::kDone;
  return stored;
}

// ---- the queue ----------------------------------------------------------------------------------

Queue::Queue(QueueOptions options) : options_(options) {}

Actions Queue::handle(const Event& event, TimeMs now) {
  now_ = now;
  actions_.clear();
  actions_.reserve(kUsualActions);
  wake_rested();
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

uint64_t Queue::persist(decltype(StoreOp::change) change, Pending pending) {
  const uint64_t token = next_token_++;
  pending_.emplace(token, std::move(pending));
  act(action::Persist{StoreOp{token, std::move(change)}});
  return token;
}

void Queue::persist_status(const Search& search, StatusPending pending) {
  persist(PutStatus{search.id, search.status_to_store()}, std::move(pending));
}

// ---- searches -----------------------------------------------------------------------------------

Search& Queue::place(Search search) {
  std::string id = search.id;
  Search& placed = searches_.emplace(std::move(id), std::move(search)).first->second;
  placed.turn.search = &placed;
  placed.turn.number = next_number_++;
  return placed;
}

void Queue::on(const event::SearchLoaded& event) {
  Search& search = place(Search(event.record));
  for (const UnitResult& result : event.record.results) {
    const auto slot = search.slot(result.unit);
    if (slot && search.phases[*slot] != UnitPhase::kDone) search.count(*slot, result);
  }
  for (const auto& [unit, failure] : event.record.failures) {
    const auto slot = search.slot(unit);
    if (!slot || search.phases[*slot] != UnitPhase::kOpen) continue;
    search.set_phase(*slot, UnitPhase::kSetAside);
    search.troubles[*slot].failure = failure;
  }
  for (const auto& [unit, lease] : event.record.leases) {
    const auto slot = search.slot(unit);
    if (!slot || search.phases[*slot] != UnitPhase::kOpen) continue;
    HeldLease held{lease.worker, lease.fence, now_ + options_.restart_grace_ms};
    held.restored = true;
    set_lease(search, *slot, std::move(held), nullptr);
  }
  refresh(search);
  maybe_finish(search);
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
  refresh(place(Search(record)));
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
  search.spec.memory = wanted.spec.memory;
  const bool waits_for_tokens = search.status.state == SearchState::kPaused && !search.has_tokens;
  const bool stopped =
      search.status.state == SearchState::kFailed || search.status.state == SearchState::kCancelled;
  if (event.tokens != nullptr) {
    search.has_tokens = true;
    if (waits_for_tokens || stopped) {
      search.status.state = SearchState::kQueued;
      search.status.error.reset();
      search.excluded.clear();
    }
    forget_failures(search);
  }
  refresh(search);
  SearchRecord record{search.id,
                      search.spec,
                      search.fingerprint,
                      search.created_unix,
                      search.status_to_store(),
                      search.fence,
                      search.has_tokens,
                      {},
                      {},
                      wanted.results};
  persist(PutSearch{std::move(record), event.tokens},
          SearchPending{search.id, wanted.results, event.request, false});
  if (has_ended(search.status.state)) act(action::Forget{search.id});
}

// Every unit that failed gets new attempts, those that are set aside, too.
void Queue::forget_failures(Search& search) {
  if (!search.set_aside.empty()) persist(ClearFailures{search.id}, std::monostate());
  std::vector<size_t> slots;
  for (const auto& [slot, trouble] : search.troubles) slots.push_back(slot);
  for (const size_t slot : slots) search.forgive(slot);
  refresh(search);
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
  if (event.kind == Kind::kResume && alive) {
    if (state == SearchState::kPaused) state = SearchState::kQueued;
    forget_failures(*search);
  }
  if (event.kind == Kind::kReprioritize) {
    search->status.priority = event.priority;
    turns_.reprioritize(search->turn, event.priority);
  }
  if (event.kind == Kind::kCancel && alive) {
    state = SearchState::kCancelled;
    revoke_all(*search);
    act(action::Forget{search->id});
  }
  refresh(*search);
  persist_status(*search, StatusPending{search->id, event.request});
}

void Queue::on(const event::Delete& event) {
  if (deleting_.contains(event.search)) {  // "not found" would promise what is not durable yet
    return act(action::ReplyError{
        event.request, unavailable(fmt::format(
                           "search '{}' is being deleted; try again in a moment", event.search))});
  }
  Search* search = find_mutable(event.search);
  if (search == nullptr || store_lost_) {
    const Error error = store_lost_
                            ? unavailable("Redis cannot be reached: " + store_reason_)
                            : not_found(fmt::format("there is no search '{}'", event.search), "id");
    return act(action::ReplyError{event.request, error});
  }
  search->finishing = true;  // nothing is given out or decided about it any more
  revoke_all(*search);
  act(action::Forget{search->id});
  deleting_.insert(search->id);
  persist(DeleteSearch{search->id}, DeletePending{search->id, event.request});
  turns_.leave(search->turn);
  std::erase_if(rest_alarms_, [&](const Alarm& alarm) { return alarm.search == search; });
  for (auto& [epoch, worker] : workers_) {
    if (worker.last_search == search->id) worker.last_search.clear();
  }
  searches_.erase(event.search);
}

void Queue::fail_search(Search& search, Error error) {
  act(action::Log{false, fmt::format("search '{}' failed: {}", search.id, error.message)});
  search.status.state = SearchState::kFailed;
  search.status.error = std::move(error);
  revoke_all(search);
  refresh(search);
  act(action::Forget{search.id});
  persist_status(search, StatusPending{search.id, std::nullopt});
}

// A complete search first gets its checkpoint, then the durable state `done`, and only then is
// anybody told. One whose last units are all set aside has failed.
void Queue::maybe_finish(Search& search) {
  if (search.finishing || has_ended(search.status.state)) return;
  if (search.table.complete()) {
    search.finishing = true;
    refresh(search);
    act(action::WriteCheckpoint{search.id});
  } else if (search.grants() && search.is_exhausted()) {
    fail_search(search, exhausted_error(search));
  } else if (search.grants() && search.table.units_done() == 0 &&
             std::ssize(search.set_aside) >= options_.hopeless_units) {
    fail_search(search, exhausted_error(search));
  }
}

void Queue::on(const event::CheckpointWritten& event) {
  Search* search = find_mutable(event.search);
  if (search == nullptr || !search->finishing) return;
  search->done_is_sent = true;
  persist_status(*search, StatusPending{search->id, std::nullopt, true});
}

void Queue::report_conflict(Search& search, const UnitId& unit, const WorkerEpoch& worker) {
  ++search.conflicts;
  act(action::Log{true, fmt::format("two results of {} of search '{}' differ (the second is from "
                                    "worker {}); the first one stays",
                                    unit_name(unit), search.id, worker.value)});
}

void Queue::on(const event::Stop&) { stopping_ = true; }

// ---- store --------------------------------------------------------------------------------------

void Queue::on(const StoreLost& event) {
  store_lost_ = true;
  store_reason_ = event.reason;
}

void Queue::on(const StoreBack&) {
  store_lost_ = false;
  work_added_ = true;
}

void Queue::on(const StoreDone& event) {
  auto node = pending_.extract(event.token);
  if (node.empty()) return;
  std::visit([&](auto& pending) { stored(pending, event); }, node.mapped());
}

void Queue::stored(ResultPending& pending, const StoreDone& event) {
  Search* search = find_mutable(pending.search);
  const UnitId unit = pending.result.unit;
  if (search != nullptr) {
    if (event.outcome == StoreDone::Outcome::kConflict) {
      report_conflict(*search, unit, pending.waiters.front().worker);
      Result<UnitResult> first = unpack_unit_result(unit, event.stored);
      if (first.ok()) pending.result = std::move(first).value();
    }
    const size_t slot = *search->slot(unit);
    if (search->phases[slot] == UnitPhase::kStoring) search->count(slot, pending.result);
    refresh(*search);
    act(action::Publish{search->id});
    maybe_finish(*search);
  }
  for (const Waiter& waiter : pending.waiters) {
    const auto worker = workers_.find(waiter.worker);
    if (worker != workers_.end()) ++worker->second.units_done;
    act(action::SendAck{waiter.worker, pending.search, unit, waiter.fence, waiter.correlation_id});
  }
}

void Queue::stored(const LeasePending& pending, const StoreDone&) {
  Search* search = find_mutable(pending.search);
  if (search == nullptr || !pending.send) return;
  const std::optional<size_t> slot = search->slot(pending.unit);
  if (!slot) return;  // deleted meanwhile, and this is another search of the same name
  const auto leases = search->leases.find(*slot);
  if (leases == search->leases.end()) return;  // released meanwhile
  for (HeldLease& lease : leases->second) {
    if (lease.fence != pending.lease.fence) continue;
    lease.listed = now_;
    act(action::SendUnit{lease.worker, search->id, pending.unit, lease.fence, options_.lease_ms});
    act(action::Publish{search->id});
  }
}

void Queue::stored(const StatusPending& pending, const StoreDone&) {
  Search* search = find_mutable(pending.search);
  if (search != nullptr && pending.done) {
    search->status.state = SearchState::kDone;
    search->finishing = false;
    refresh(*search);
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
    const size_t slot = *search->slot(result.unit);
    if (search->phases[slot] == UnitPhase::kDone) continue;
    while (search->leases.contains(slot)) release(*search, slot, search->leases[slot][0].fence);
    search->count(slot, result);
  }
  refresh(*search);
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
