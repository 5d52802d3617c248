// One worker of several processes: rank 0 talks to the coordinator, the others follow it.
//
// Each unit that rank 0 gets it hands to every rank; all run it at once, each on its shard, and
// come to the same result, which rank 0 delivers. While there is nothing to do rank 0 says so every
// second, so that nobody waits without an end.
//
// A group lives and dies as one. Every rank shows a sign of life four times a second; when one is
// silent, its connection breaks, or a collective call makes no progress for too long, the unit
// fails (kUnavailable, to be run again by others), and every rank that is left ends with a message
// that names the rank that was not heard. Whoever started the group starts all of it again.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "worker/collective.h"
#include "worker/unit_runner.h"

namespace bitalloc {

struct GroupOptions {
  int size = 1;
  int rank = 0;
  std::string rendezvous;  // see RendezvousOptions::address
  int cuda_device = -1;    // the index of this rank's GPU; -1: the shard is on the CPU
  std::chrono::milliseconds start_timeout{60'000};       // for all ranks to come
  std::chrono::milliseconds collective_timeout{20'000};  // for the slowest rank of any call
  std::chrono::milliseconds silence{5'000};              // without a sign of life: a rank is lost
};

// The connections of one rank to its group. `collective` belongs to one thread at a time; the rest
// may be called by any.
class RankGroup {
 public:
  // Errors: kUnavailable when not all ranks come, or one leaves; kMismatch when ranks are of other
  // versions.
  static Result<std::unique_ptr<RankGroup>> join(const GroupOptions& options);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int rank() const;
  int size() const;
  Collective& collective();
  // The rank that has been silent for too long, or the call that does not get on (looked at while
  // `working`): kUnavailable; ok as long as all is well.
  Status check(bool working);
  // `what` went wrong in a call: the same with the name of the rank that is silent, or behind.
  // Takes up to some two seconds to find out.
  Error blame(const std::string& what);

 private:
  class Impl;
  explicit RankGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Rank 0's: runs units on all ranks by `runner`, which uses the group's collective. `on_broken`
// is called, once and from any thread, when the group is of no more use; units fail from then on.
// `group` must outlive the runner. The destructor tells the others to stop.
std::unique_ptr<UnitRunner> make_group_runner(RankGroup& group, std::unique_ptr<UnitRunner> runner,
                                              std::function<void()> on_broken);

// The other ranks': runs what rank 0 says by `runner` until it says stop. Errors: kUnavailable
// naming the rank that is lost; what failed on this rank alone. After an error a thread may still
// wait for the lost rank: the process must end without running destructors.
Status follow(RankGroup& group, UnitRunner& runner);

}  // namespace bitalloc
