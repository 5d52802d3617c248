// Breaks what goes between the world and the queue, as its mutant says. Without a mutant it passes
// everything on as it is.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "common/random.h"
#include "coordinator/queue.h"
#include "tests/sim/mutant.h"

namespace bitalloc::sim {

class Saboteur {
 public:
  Saboteur(Mutant mutant, Random& random) : mutant_(mutant), random_(random) {}

  // May change the event. False: the queue never hears of it.
  bool passes(Event& event);
  // May change what the queue answered to `event`.
  void spoil(const Event& event, Actions& actions);

 private:
  void keep_dropped_leases(event::WorkerHeartbeat& heartbeat) const;
  void ack_early(const event::WorkerResult& result, Actions& actions) const;
  void send_early(Actions& actions) const;
  void send_again(Actions& actions);
  void drop_units(Actions& actions);

  const Mutant mutant_;
  Random& random_;
  std::optional<action::SendUnit> again_;
  std::vector<action::SendUnit> dropped_;
  std::set<uint64_t> status_tokens_;
};

}  // namespace bitalloc::sim
