#include "tests/sim/saboteur.h"

#include <algorithm>

namespace bitalloc::sim {
namespace {

constexpr TimeMs kLeaseMs = 30'000;

template <typename A>
void remove(Actions& actions) {
  std::erase_if(actions, [](const Action& action) { return std::holds_alternative<A>(action); });
}

template <typename Change>
const Change* persisted(const Action& action) {
  const auto* persist = std::get_if<action::Persist>(&action);
  return persist == nullptr ? nullptr : std::get_if<Change>(&persist->op.change);
}

}  // namespace

bool Saboteur::passes(Event& event) {
  auto* change = std::get_if<event::Change>(&event);
  using Kind = event::Change::Kind;
  if (mutant_ == Mutant::kIgnoresTicks) return !std::holds_alternative<event::Tick>(event);
  if (mutant_ == Mutant::kIgnoresPauses && change && change->kind == Kind::kPause) {
    change->kind = Kind::kResume;
  } else if (mutant_ == Mutant::kIgnoresCancels && change && change->kind == Kind::kCancel) {
    change->kind = Kind::kResume;
  } else if (mutant_ == Mutant::kTurnsPriorities) {
    if (change) change->priority = -change->priority;
    if (auto* submit = std::get_if<event::Submit>(&event)) submit->record.status.priority *= -1;
  } else if (mutant_ == Mutant::kDropsUnits) {
    if (auto* beat = std::get_if<event::WorkerHeartbeat>(&event)) keep_dropped_leases(*beat);
  } else if (mutant_ == Mutant::kForgetsChanges) {
    const auto* done = std::get_if<StoreDone>(&event);
    return done == nullptr || status_tokens_.erase(done->token) == 0;
  }
  return true;
}

void Saboteur::keep_dropped_leases(event::WorkerHeartbeat& heartbeat) const {
  for (const auto& unit : dropped_) {
    if (unit.worker == heartbeat.worker) {
      heartbeat.units.push_back({unit.search, unit.unit, unit.fence});
    }
  }
}

void Saboteur::spoil(const Event& event, Actions& actions) {
  switch (mutant_) {
    case Mutant::kAcksBeforeDurable:
      if (const auto* e = std::get_if<event::WorkerResult>(&event)) ack_early(*e, actions);
      break;
    case Mutant::kSendsBeforeDurable:
      send_early(actions);
      break;
    case Mutant::kSendsDoneUnits:
      send_again(actions);
      break;
    case Mutant::kDropsRevokes:
      remove<action::SendRevoke>(actions);
      break;
    case Mutant::kDropsUnits:
      drop_units(actions);
      break;
    case Mutant::kForgetsChanges:
      for (const Action& action : actions) {
        if (persisted<PutStatus>(action) == nullptr) continue;
        status_tokens_.insert(std::get<action::Persist>(action).op.token);
      }
      break;
    default:
      break;
  }
}

void Saboteur::ack_early(const event::WorkerResult& result, Actions& actions) const {
  const bool on_its_way = std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return persisted<PutResult>(action) != nullptr;
  });
  if (!on_its_way) return;
  actions.push_back(
      action::SendAck{result.worker, result.search, result.result.unit, result.fence, ""});
}

void Saboteur::send_early(Actions& actions) const {
  Actions early;
  for (const Action& action : actions) {
    const auto* put = persisted<PutLease>(action);
    if (put == nullptr) continue;
    early.push_back(
        action::SendUnit{put->lease.worker, put->search, put->unit, put->lease.fence, kLeaseMs});
  }
  remove<action::SendUnit>(actions);
  for (Action& action : early) actions.push_back(std::move(action));
}

void Saboteur::send_again(Actions& actions) {
  Actions more;
  for (const Action& action : actions) {
    const auto* ack = std::get_if<action::SendAck>(&action);
    if (const auto* sent = std::get_if<action::SendUnit>(&action)) again_ = *sent;
    if (ack && again_ && ack->search == again_->search && ack->unit == again_->unit) {
      more.push_back(*again_);
    }
  }
  for (Action& action : more) actions.push_back(std::move(action));
}

void Saboteur::drop_units(Actions& actions) {
  std::erase_if(actions, [this](const Action& action) {
    const auto* sent = std::get_if<action::SendUnit>(&action);
    const bool drop = sent != nullptr && random_.one_in(10);
    if (drop) dropped_.push_back(*sent);
    return drop;
  });
}

}  // namespace bitalloc::sim
