#include "solver/reprover.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "solver/instance.h"

namespace bitalloc {
namespace {

// CBC decides to 1e-9 of the relaxation's gap, which no more than the objective's size bounds.
bool same_objective(const Problem& problem, double a, double b) {
  double magnitude = std::max(std::fabs(a), std::fabs(b));
  for (const auto& row : problem.score) {
    magnitude += 1e-4 * std::fabs(*std::min_element(row.begin(), row.end()));
  }
  return std::fabs(a - b) <= 1e-8 * magnitude;
}

}  // namespace

CbcVerdict prove_again(const Problem& problem, const Constraints& constraints,
                       const Solution& solution, double seconds, std::stop_token stop) {
  SolveOptions options;
  options.time_limit_seconds = seconds;
  options.max_points = 1;  // none for a dynamic program
  options.stop = std::move(stop);
  const auto again = solve(problem, constraints, options);
  if (!again.ok() && again.error().code != ErrorCode::kInfeasible) {
    return CbcVerdict::kStopped;
  }
  const bool same = again.ok() && same_objective(problem, again->objective, solution.objective);
  const bool better = again.ok() && !same && again->objective < solution.objective;
  if (again.ok() && !better && !again->proven_optimal) {
    return again->cbc == CbcVerdict::kDisagreed ? again->cbc : CbcVerdict::kStopped;
  }
  if (same) {
    return again->cbc == CbcVerdict::kNothingLeft ? again->cbc : CbcVerdict::kAgreed;
  }
  spdlog::error("solver: {} nats were proven, CBC finds {}: {}", solution.objective,
                again.ok() ? fmt::format("{}", again->objective) : "no assignment",
                instance_to_json(problem, constraints));
  return CbcVerdict::kDisagreed;
}

Reprover::Reprover(double seconds_each, std::size_t capacity)
    : seconds_each_(seconds_each),
      capacity_(capacity),
      thread_([this](std::stop_token stop) { run(std::move(stop)); }) {}

Reprover::~Reprover() {
  thread_.request_stop();
  thread_.join();
}

void Reprover::submit(Problem problem, Constraints constraints, Solution solution) {
  const std::lock_guard guard(mutex_);
  if (proofs_.size() >= capacity_) {
    proofs_.pop_front();
    ++counts_.dropped;
    --counts_.waiting;
  }
  proofs_.push_back({std::move(problem), std::move(constraints), std::move(solution)});
  ++counts_.waiting;
  changed_.notify_one();
}

Reprover::Counts Reprover::counts() const {
  const std::lock_guard guard(mutex_);
  return counts_;
}

void Reprover::count(CbcVerdict verdict) {
  const std::lock_guard guard(mutex_);
  --counts_.waiting;
  switch (verdict) {
    case CbcVerdict::kAgreed:
    case CbcVerdict::kNothingLeft:
      ++counts_.agreed;
      break;
    case CbcVerdict::kDisagreed:
      ++counts_.disagreed;
      break;
    case CbcVerdict::kStopped:
    case CbcVerdict::kNotAsked:
      ++counts_.stopped;
      break;
  }
}

void Reprover::run(std::stop_token stop) {
  setpriority(PRIO_PROCESS, 0, 19);  // this thread only, on Linux; a wish, not a need
  while (true) {
    Proof proof;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !proofs_.empty(); }) ||
          stop.stop_requested()) {
        return;
      }
      proof = std::move(proofs_.front());
      proofs_.pop_front();
    }
    count(prove_again(proof.problem, proof.constraints, proof.solution, seconds_each_, stop));
  }
}

}  // namespace bitalloc
