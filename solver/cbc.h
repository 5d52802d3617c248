// Adapter to CBC: a small binary program in, the chosen columns out. The only file that knows CBC.
//
// CBC must not run twice at once in a process: run_cbc() holds one process-wide lock while it runs,
// so callers on several threads queue, within their own time limits. The limits hold inside a node,
// too: every simplex iteration looks at the clock and at the stop token. Nothing is printed.
// Exceptions of COIN-OR become errors.
#pragma once

#include <stop_token>
#include <vector>

#include "common/status.h"

namespace bitalloc {

struct LinearRow {  // lower ≤ Σ coefficients·x[columns] ≤ upper
  std::vector<int> columns;
  std::vector<double> coefficients;
  double lower = 0;
  double upper = 0;
};

// minimize Σ cost·x. CBC's tolerances are absolute (1e-7): scale costs so that what matters is
// about 1…1000.
struct BinaryProgram {
  std::vector<double> cost;    // [columns]
  std::vector<double> upper;   // [columns] upper bound; the lower one is 0
  std::vector<bool> integral;  // [columns]
  std::vector<LinearRow> rows;
};

struct CbcLimits {
  double seconds = 10;        // wall clock, waiting for the lock included
  double cutoff = 1e50;       // solutions that cost more are of no interest
  std::vector<double> start;  // [columns] a feasible solution to begin with; may be empty
  std::stop_token stop = {};  // request_stop() ends the run as kStopped
};

struct CbcAnswer {
  enum class Status { kOptimal, kInfeasible, kStopped };
  Status status = Status::kStopped;
  std::vector<double> x;  // best solution found; empty when none
  double bound = 0;       // CBC's own lower bound: for information, never a certificate
  int nodes = 0;
};

Result<CbcAnswer> run_cbc(const BinaryProgram& program, const CbcLimits& limits);

// The linear relaxation of a program, by CLP. Needs no lock: COIN-OR's own threads run it side by
// side.
struct LpAnswer {
  enum class Status { kOptimal, kInfeasible, kStopped };
  Status status = Status::kStopped;
  std::vector<double> row_dual;  // [rows] of an optimum: for information, never a certificate
};
Result<LpAnswer> run_lp(const BinaryProgram& program, const CbcLimits& limits);

}  // namespace bitalloc
