#include "solver/cbc.h"

#include <CbcModel.hpp>
#include <CglKnapsackCover.hpp>
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
  model->setUseElapsedTime(true);
  model->setMaximumSeconds(limits.seconds);
  model->setCutoff(limits.cutoff);
  // The default (1e-5) would skip solutions that are better by less.
  model->setDblParam(CbcModel::CbcCutoffIncrement, 1e-9);
  CglKnapsackCover cover;
  model->addCutGenerator(&cover, -1, "cover");
  if (!limits.start.empty()) {
    double cost = 0;
    for (std::size_t j = 0; j < limits.start.size(); ++j) {
      cost += limits.start[j] * model->solver()->getObjCoefficients()[j];
    }
    model->setBestSolution(limits.start.data(), static_cast<int>(limits.start.size()), cost, true);
  }
}

CbcAnswer solve_program(const BinaryProgram& program, const CbcLimits& limits) {
  OsiClpSolverInterface solver;
  solver.messageHandler()->setLogLevel(0);
  solver.getModelPtr()->setLogLevel(0);
  load(program, &solver);
  CbcModel model(solver);
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
  if (model.isProvenOptimal()) {
    answer.status = CbcAnswer::Status::kOptimal;
  } else if (model.isProvenInfeasible()) {
    answer.status = CbcAnswer::Status::kInfeasible;
  }
  return answer;
}

}  // namespace

Result<CbcAnswer> run_cbc(const BinaryProgram& program, const CbcLimits& limits) {
  const Clock::time_point start = Clock::now();
  // Far limits are all the same to a wait, and must not overflow the clock.
  const std::chrono::duration<double> patience(std::min(limits.seconds, 1e6));
  const std::unique_lock<std::timed_mutex> guard(
      cbc_lock(), start + std::chrono::duration_cast<Clock::duration>(patience));
  if (!guard.owns_lock()) {
    return CbcAnswer{};
  }
  CbcLimits left = limits;
  left.seconds -= std::chrono::duration<double>(Clock::now() - start).count();
  if (left.seconds <= 0) {
    return CbcAnswer{};
  }
  try {
    return solve_program(program, left);
  } catch (const CoinError& error) {
    return internal_error("CBC failed in " + error.methodName() + ": " + error.message());
  } catch (const std::exception& error) {
    return internal_error(std::string("CBC failed: ") + error.what());
  }
}

}  // namespace bitalloc
