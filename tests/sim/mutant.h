// Parts broken on purpose, to show that the simulator would notice.
#pragma once

#include <array>
#include <string>

namespace bitalloc::sim {

enum class Mutant {
  kNone,
  // The store.
  kForgetsResults,      // says that a result is durable and drops it
  kLosesLastSecond,     // as with `appendfsync everysec`: a crash takes what was acknowledged
  kTakesStaleFences,    // lets a coordinator that was taken over write
  kTakesLatePipelines,  // does what a lost connection sent after the next one has written
  kAddsDuplicates,      // a second copy of a result is added to the first
  // Between the queue and the world.
  kAcksBeforeDurable,   // when the result is on its way to the store
  kSendsBeforeDurable,  // the unit goes out while its lease is on its way to the store
  kSendsDoneUnits,      // now and then a unit whose result is durable goes out again
  kDropsRevokes,        // no unit is ever taken back
  kDropsUnits,          // one unit in ten is never sent, and its lease renewed all the same
  kIgnoresPauses,       // a pause is answered, nothing more
  kIgnoresCancels,
  kIgnoresTicks,     // nobody is ever given up
  kTurnsPriorities,  // the lowest is served first
  kForgetsChanges,   // what the store answers about a status is thrown away
  // The worker.
  kSaysNoFingerprint,  // a result is taken for another search of the same name
  kSaysCreditsOnce,    // and not with every heartbeat: a lost message leaves it idle for ever
};

struct MutantName {
  Mutant mutant;
  const char* name;
};

inline constexpr std::array kMutants = {
    MutantName{Mutant::kForgetsResults, "store forgets results"},
    MutantName{Mutant::kLosesLastSecond, "store loses the last second in a crash"},
    MutantName{Mutant::kTakesStaleFences, "store takes stale fences"},
    MutantName{Mutant::kTakesLatePipelines, "store takes late pipelines"},
    MutantName{Mutant::kAddsDuplicates, "store adds duplicates"},
    MutantName{Mutant::kAcksBeforeDurable, "ack before durable"},
    MutantName{Mutant::kSendsBeforeDurable, "unit before its lease is durable"},
    MutantName{Mutant::kSendsDoneUnits, "a done unit goes out again"},
    MutantName{Mutant::kDropsRevokes, "revokes are dropped"},
    MutantName{Mutant::kDropsUnits, "units are dropped and their leases kept"},
    MutantName{Mutant::kIgnoresPauses, "pauses are ignored"},
    MutantName{Mutant::kIgnoresCancels, "cancels are ignored"},
    MutantName{Mutant::kIgnoresTicks, "ticks are ignored"},
    MutantName{Mutant::kTurnsPriorities, "priorities are turned round"},
    MutantName{Mutant::kForgetsChanges, "answers about a status are lost"},
    MutantName{Mutant::kSaysNoFingerprint, "results do not say of which search"},
    MutantName{Mutant::kSaysCreditsOnce, "credits are said once"},
};

}  // namespace bitalloc::sim
