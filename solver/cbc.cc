#include "solver/cbc.h"

#include <CbcEventHandler.hpp>
#include <CbcModel.hpp>
#include <ClpEventHandler.hpp>
#include <ClpSimplex.hpp>
#include <CoinError.hpp>
#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>

namespace bitalloc {
namespace {

using Clock = std::chrono::system_clock;  // not steady: GCC 12's thread sanitizer misses that wait

// Whether a run must end: asked at every node and every simplex iteration. Once it has said yes it
// stays with it, because COIN-OR takes an interrupted relaxation for an infeasible one.
class Alarm {
 public:
  explicit Alarm(const CbcLimits& limits)
      : stop_(limits.stop),
        deadline_(Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(
                      std::chrono::duration<double>(std::min(limits.seconds, 1e6)))) {}
  bool rings() {
    rung_ = rung_ || stop_.stop_requested() || Clock::now() >= deadline_;
    return rung_;
  }

 private:
  std::stop_token stop_;
  Clock::time_point deadline_;
  bool rung_ = false;
};

class NodeEvents : public CbcEventHandler {
 public:
  explicit NodeEvents(Alarm* alarm) : alarm_(alarm) {}
  CbcAction event(CbcEvent) override { return alarm_->rings() ? stop : noAction; }
  CbcEventHandler* clone() const override { return new NodeEvents(*this); }

 private:
  Alarm* alarm_;
};

class SimplexEvents : public ClpEventHandler {
 public:
  explicit SimplexEvents(Alarm* alarm) : alarm_(alarm) {}
  int event(Event) override { return alarm_->rings() ? 0 : -1; }
  ClpEventHandler* clone() const override { return new SimplexEvents(*this); }

 private:
  Alarm* alarm_;
};

std::timed_mutex& cbc_lock() {
  static std::timed_mutex lock;
  return lock;
}

void load(const BinaryProgram& program, OsiClpSolverInterface* solver) {
  const int columns = static_cast<int>(program.cost.size());
  CoinPackedMatrix matrix(false, 0, 0);
  matrix.setDimensions(0, columns);
  std::vector<double> lower;
  std::vector<double> upper;
  for (const LinearRow& row : program.rows) {
    matrix.appendRow(static_cast<int>(row.columns.size()), row.columns.data(),
                     row.coefficients.data());
    lower.push_back(row.lower);
    upper.push_back(row.upper);
  }
  const std::vector<double> zeros(program.cost.size(), 0.0);
  solver->loadProblem(matrix, zeros.data(), program.upper.data(), program.cost.data(), lower.data(),
                      upper.data());
  for (int j = 0; j < columns; ++j) {
    if (program.integral[j]) {
      solver->setInteger(j);
    }
  }
}

void configure(const CbcLimits& limits, CbcModel* model) {
  model->setLogLevel(0);
  model->setAllowableGap(0);
  model->setAllowableFractionGap(0);
  model->setIntegerTolerance(1e-9);
  // Only the alarm ends a run: a relaxation that CBC's own limit interrupts counts as infeasible
  // there, and what is left is then called optimal.
  model->setUseElapsedTime(true);
  model->setMaximumSeconds(2 * limits.seconds + 60);
  model->setCutoff(limits.cutoff);
  // The default (1e-5) would skip solutions that are better by less.
  model->setDblParam(CbcModel::CbcCutoffIncrement, 1e-9);
  // No cut generators: with knapsack covers CBC 2.10 called an assignment optimal that was 0.7 %
  // worse than another (tests/oracle/solver_highs_test.py, seed 39), and took twice as long.
  if (!limits.start.empty()) {
    double cost = 0;
    for (std::size_t j = 0; j < limits.start.size(); ++j) {
      cost += limits.start[j] * model->solver()->getObjCoefficients()[j];
    }
    model->setBestSolution(limits.start.data(), static_cast<int>(limits.start.size()), cost, true);
  }
}

void prepare(const BinaryProgram& program, Alarm* alarm, OsiClpSolverInterface* solver) {
  solver->messageHandler()->setLogLevel(0);
  solver->getModelPtr()->setLogLevel(0);
  SimplexEvents events(alarm);
  solver->getModelPtr()->passInEventHandler(&events);  // copied
  load(program, solver);
}

CbcAnswer solve_program(const BinaryProgram& program, const CbcLimits& limits) {
  Alarm alarm(limits);
  OsiClpSolverInterface solver;
  prepare(program, &alarm, &solver);
  CbcModel model(solver);
  NodeEvents events(&alarm);
  model.passInEventHandler(&events);  // copied
  model.solver()->setHintParam(OsiDoReducePrint, true, OsiHintTry);
  configure(limits, &model);
  model.initialSolve();
  model.branchAndBound();

  CbcAnswer answer;
  answer.nodes = model.getNodeCount();
  answer.bound = model.getBestPossibleObjValue();
  if (const double* best = model.bestSolution(); best != nullptr) {
    answer.x.assign(best, best + program.cost.size());
  }
  if (alarm.rings()) {
    return answer;
  }
  if (model.isProvenOptimal()) {
    answer.status = CbcAnswer::Status::kOptimal;
  } else if (model.isProvenInfeasible()) {
    answer.status = CbcAnswer::Status::kInfeasible;
  }
  return answer;
}

LpAnswer relax_program(const BinaryProgram& program, const CbcLimits& limits) {
  Alarm alarm(limits);
  OsiClpSolverInterface solver;
  prepare(program, &alarm, &solver);
  solver.initialSolve();
  LpAnswer answer;
  if (alarm.rings()) {
    return answer;
  }
  if (solver.isProvenOptimal()) {
    answer.status = LpAnswer::Status::kOptimal;
    answer.row_dual.assign(solver.getRowPrice(), solver.getRowPrice() + program.rows.size());
  } else if (solver.isProvenPrimalInfeasible()) {
    answer.status = LpAnswer::Status::kInfeasible;
  }
  return answer;
}

// `run`, with COIN-OR's exceptions as errors.
template <typename Answer>
Result<Answer> guarded(Answer (*run)(const BinaryProgram&, const CbcLimits&),
                       const BinaryProgram& program, const CbcLimits& limits) {
  try {
    return run(program, limits);
  } catch (const CoinError& error) {
    return internal_error("CBC failed in " + error.methodName() + ": " + error.message());
  } catch (const std::exception& error) {
    return internal_error(std::string("CBC failed: ") + error.what());
  }
}

// Waits for its turn in small steps, so that a stop token is heard.
bool wait_for_turn(std::unique_lock<std::timed_mutex>* guard, Alarm* alarm) {
  while (!guard->try_lock_until(Clock::now() + std::chrono::milliseconds(5))) {
    if (alarm->rings()) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<LpAnswer> run_lp(const BinaryProgram& program, const CbcLimits& limits) {
  return guarded(relax_program, program, limits);
}

Result<CbcAnswer> run_cbc(const BinaryProgram& program, const CbcLimits& limits) {
  const Clock::time_point start = Clock::now();
  Alarm alarm(limits);
  std::unique_lock<std::timed_mutex> guard(cbc_lock(), std::defer_lock);
  if (!wait_for_turn(&guard, &alarm)) {
    return CbcAnswer{};
  }
  CbcLimits left = limits;
  left.seconds -= std::chrono::duration<double>(Clock::now() - start).count();
  if (left.seconds <= 0) {
    return CbcAnswer{};
  }
  return guarded(solve_program, program, left);
}

}  // namespace bitalloc
