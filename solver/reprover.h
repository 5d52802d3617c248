// CBC's second opinion on answers of the fast path, off the caller's way: a thread of low priority
// that proves them again, one after the other. A disagreement is logged as an error, with the
// instance as JSON that `bitalloc solve` reads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <stop_token>
#include <thread>

#include "solver/constraints.h"
#include "solver/problem.h"
#include "solver/solve.h"

namespace bitalloc {

// What CBC alone, without the dynamic program, says about `solution` within `seconds`. Logs a
// disagreement. Thread-safe (CBC queues).
CbcVerdict prove_again(const Problem& problem, const Constraints& constraints,
                       const Solution& solution, double seconds, std::stop_token stop = {});

// Thread-safe. Full policy: the proof that has waited longest is dropped (newer budgets matter
// more).
class Reprover {
 public:
  explicit Reprover(double seconds_each = 1, std::size_t capacity = 32);
  ~Reprover();  // ends the proof that runs, drops those that wait

  void submit(Problem problem, Constraints constraints, Solution solution);

  struct Counts {
    std::size_t agreed = 0;  // or nothing was left to prove
    std::size_t stopped = 0;
    std::size_t disagreed = 0;
    std::size_t dropped = 0;
    std::size_t waiting = 0;  // or running
  };
  Counts counts() const;

 private:
  struct Proof {
    Problem problem;
    Constraints constraints;
    Solution solution;
  };

  void run(std::stop_token stop);
  void count(CbcVerdict verdict);

  const double seconds_each_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Proof> proofs_;  // guarded
  Counts counts_;             // guarded
  std::jthread thread_;       // last: starts when all else is there
};

}  // namespace bitalloc
