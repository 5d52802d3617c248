#include "coordinator/turns.h"

#include <algorithm>
#include <tuple>

namespace bitalloc {

bool Turns::Earlier::operator()(const Turn* a, const Turn* b) const {
  return std::tie(a->served_seconds, a->created_unix, a->number) <
         std::tie(b->served_seconds, b->created_unix, b->number);
}

void Turns::join(Turn& turn) {
  if (turn.waiting) return;
  const auto [entry, is_new] = levels_.try_emplace(turn.priority);
  Level& level = entry->second;
  if (is_new) level.clock = turn.served_seconds;
  turn.served_seconds =
      std::clamp(turn.served_seconds, level.clock, level.clock + kRememberedSeconds);
  turn.waiting = true;
  level.turns.insert(&turn);
}

void Turns::leave(Turn& turn) {
  if (!turn.waiting) return;
  turn.waiting = false;
  const auto level = levels_.find(turn.priority);
  level->second.turns.erase(&turn);
  if (level->second.turns.empty()) levels_.erase(level);
}

void Turns::reprioritize(Turn& turn, int64_t priority) {
  const bool waiting = turn.waiting;
  leave(turn);
  turn.priority = priority;
  if (waiting) join(turn);
}

void Turns::charge(Turn& turn, double seconds) {
  if (!turn.waiting) {
    turn.served_seconds += seconds / turn.share;
    return;
  }
  Level& level = levels_.at(turn.priority);
  level.turns.erase(&turn);
  if (seconds > 0) level.clock = std::max(level.clock, turn.served_seconds);
  turn.served_seconds += seconds / turn.share;
  level.turns.insert(&turn);
}

}  // namespace bitalloc
