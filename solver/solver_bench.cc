// Times solve() on generated instances of the shapes that matter, or on a file:
//   solver_bench [--sites 36] [--candidates 4] [--kind KIND] [--instances 10] [--budgets 100]
//                [--seed 1] [--cbc-seconds 0] [--plain-cbc 0] [--cbc-limit 10] [--frontier]
//                [--time-limit 10]
//                [--dump FILE] [--instance FILE]
// Prints one JSON document: milliseconds (p50, p99, max) over random budgets, how many answers were
// proven, and CBC's verdicts; with --instance also budget by budget. --plain-cbc N solves the first
// N budgets by CBC on the plain program, too. --dump writes the first instance for other programs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "solver/cbc.h"
#include "solver/frontier.h"
#include "solver/solve.h"
#include "solver/solve_file.h"

namespace {

using bitalloc::Problem;
using nlohmann::json;

struct Arguments {
  int sites = 36;
  int candidates = 4;
  std::string kind = "realistic";
  int instances = 10;
  int budgets = 100;
  std::uint64_t seed = 1;
  double cbc_seconds = 0;
  int plain_cbc = 0;
  double cbc_limit = 10;
  bool frontier = false;
  double time_limit = 10;
  std::string dump;
  std::string instance;
};

// What tells the kinds of instances apart, [site]: the bits, the width, and the scores of given
// bits. The first three are the shapes of ops/bench/rivals/peer_solver.py: scores exponential in
// bits and log-normal over sites; all sites alike (ties); proportional to the bits saved, over
// unequal widths (correlated). `near_ties` are ties but for a millionth. `uneven` is realistic
// scores over bits and widths that differ from site to site; `strong` is the strongly correlated
// knapsack over such sites (Pisinger, "Where are the hard knapsack problems?", Computers &
// Operations Research 32, 2005): what a candidate gains is what it weighs plus a constant.
class Generator {
 public:
  Generator(const Arguments& arguments, std::mt19937_64* random)
      : arguments_(arguments), random_(random) {}

  Problem make() {
    Problem problem;
    for (int i = 0; i < arguments_.sites; ++i) {
      problem.bits.push_back(bits());
      problem.width.push_back(width());
      problem.score.push_back(is("strong") ? gains(problem.bits.back(), problem.width.back())
                                           : scores(problem.bits.back()));
    }
    return problem;
  }

 private:
  bool is(const char* kind) const { return arguments_.kind == kind; }
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(*random_); }

  std::vector<double> bits() {
    std::vector<double> bits;
    for (int j = 0; j < arguments_.candidates; ++j) {
      bits.push_back(is("strong")   ? 4.5 + std::round(4 * 11.5 * uniform()) / 4
                     : is("uneven") ? std::round(64 * (4.5 + 11.5 * uniform())) / 64
                                    : 4.5 + 11.5 * j / std::max(arguments_.candidates - 1, 1));
    }
    if (is("uneven") || is("strong")) {
      bits.front() = 4.5;
    }
    return bits;
  }

  double width() {
    if (is("strong")) {
      return 64 * (1 + std::floor(16 * uniform()));
    }
    if (is("uneven")) {
      return 1 + std::floor(65536 * uniform());
    }
    return is("correlated") && uniform() < 0.5 ? 256 : 1024;
  }

  std::vector<double> gains(const std::vector<double>& bits, double width) {
    const double nats_a_bit = 1e-4 / (1024 * 11.5);
    std::vector<double> scores;
    for (const double b : bits) {
      const double constant = b > bits.front() ? 0.1 * 1024 * 11.5 : 0;
      scores.push_back(2e-4 - nats_a_bit * (width * (b - 4.5) + constant));
    }
    return scores;
  }

  std::vector<double> scores(const std::vector<double>& bits) {
    const bool alike = is("ties") || is("near_ties");
    const double scale =
        alike ? 1e-4 : std::exp(std::normal_distribution<double>(0, 1.5)(*random_)) * 1e-4;
    std::vector<double> scores;
    for (const double b : bits) {
      const double noise = is("ties")        ? 1.0
                           : is("near_ties") ? 1 + 1e-6 * uniform()
                                             : 0.7 + 0.6 * uniform();
      scores.push_back(is("correlated") ? scale * (16.0 - b + 1e-3 * uniform())
                                        : scale * std::exp(-0.6 * (b - 4.5)) * noise);
    }
    return scores;
  }

  const Arguments& arguments_;
  std::mt19937_64* random_;
};

std::vector<double> random_budgets(int count, std::mt19937_64* random) {
  std::uniform_real_distribution<double> bits(4.5, 16);
  std::vector<double> budgets;
  for (int k = 0; k < count; ++k) {
    budgets.push_back(bits(*random));
  }
  return budgets;
}

json quantiles(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double q) {
    return ms[std::min(ms.size() - 1,
                       static_cast<std::size_t>(q * static_cast<double>(ms.size())))];
  };
  return {{"p50", at(0.5)}, {"p99", at(0.99)}, {"max", ms.back()}};
}

struct Tally {
  std::vector<double> solve_ms;
  int proven = 0;
  double gap = 0;  // the largest
  std::map<std::string, int> cbc;
  json rows = json::array();
};

bool measure(const bitalloc::SolveFile& file, const bitalloc::SolveOptions& options, Tally* tally) {
  for (const double budget : file.budgets) {
    const auto solution = bitalloc::solve(file.problem, budget, options);
    if (!solution.ok()) {
      std::cerr << solution.error().message << "\n";
      return false;
    }
    tally->solve_ms.push_back(solution->solve_ms);
    tally->proven += solution->proven_optimal ? 1 : 0;
    tally->gap = std::max(tally->gap, solution->gap);
    ++tally->cbc[bitalloc::cbc_verdict_name(solution->cbc)];
    tally->rows.push_back({{"budget", budget},
                           {"objective", solution->objective},
                           {"proven", solution->proven_optimal},
                           {"ms", solution->solve_ms}});
  }
  return true;
}

// The program as one would write it down: no bound, no scaling, no start.
bitalloc::BinaryProgram plain_program(const Problem& problem, double budget) {
  bitalloc::BinaryProgram program;
  bitalloc::LinearRow row{{}, {}, 0, 0};
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    bitalloc::LinearRow one{{}, {}, 1, 1};
    for (std::size_t j = 0; j < problem.bits[i].size(); ++j) {
      const int column = static_cast<int>(program.cost.size());
      program.cost.push_back(problem.score[i][j]);
      program.upper.push_back(1);
      program.integral.push_back(true);
      one.columns.push_back(column);
      one.coefficients.push_back(1);
      row.columns.push_back(column);
      row.coefficients.push_back(problem.width[i] * problem.bits[i][j]);
    }
    row.upper += problem.width[i] * budget;
    program.rows.push_back(std::move(one));
  }
  program.rows.push_back(std::move(row));
  return program;
}

// The first budgets by plain CBC: milliseconds, how many it calls optimal, and the worst objective
// over ours − 1 (no answer at all: 1).
json plain_cbc(const bitalloc::SolveFile& file, const Arguments& arguments, const json& ours) {
  std::vector<double> took;
  int optimal = 0;
  double worst = 0;
  for (int k = 0; k < std::min<int>(arguments.plain_cbc, static_cast<int>(file.budgets.size()));
       ++k) {
    const auto program = plain_program(file.problem, file.budgets[k]);
    bitalloc::CbcLimits limits;
    limits.seconds = arguments.cbc_limit;
    const auto start = std::chrono::steady_clock::now();
    const auto answer = bitalloc::run_cbc(program, limits);
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    took.push_back(ms.count());
    optimal += answer.ok() && answer->status == bitalloc::CbcAnswer::Status::kOptimal ? 1 : 0;
    double cost = 0;
    for (std::size_t c = 0; answer.ok() && c < answer->x.size(); ++c) {
      cost += answer->x[c] * program.cost[c];
    }
    const double best = ours[k]["objective"];
    worst = std::max(worst, answer.ok() && !answer->x.empty() ? cost / best - 1 : 1.0);
  }
  return {{"ms", quantiles(took)}, {"optimal", optimal}, {"of", took.size()}, {"excess", worst}};
}

json frontier_row(const Problem& problem) {
  const auto start = std::chrono::steady_clock::now();
  const auto frontier = bitalloc::solve_frontier(problem);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  BA_CHECK(frontier.ok(), "frontier of a valid problem");
  return {{"ms", took.count()}, {"points", frontier->points.size()}, {"exact", frontier->exact}};
}

bitalloc::Result<std::vector<bitalloc::SolveFile>> make_work(const Arguments& arguments) {
  std::vector<bitalloc::SolveFile> work;
  if (!arguments.instance.empty()) {
    std::ifstream in(arguments.instance);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    BA_ASSIGN_OR_RETURN(bitalloc::SolveFile file, bitalloc::parse_solve_file(text));
    work.push_back(std::move(file));
    return work;
  }
  std::mt19937_64 random(arguments.seed);
  for (int k = 0; k < arguments.instances; ++k) {
    bitalloc::SolveFile file;
    file.problem = Generator(arguments, &random).make();
    file.budgets = random_budgets(arguments.budgets, &random);
    work.push_back(std::move(file));
  }
  return work;
}

int run(const Arguments& arguments) {
  const auto work = make_work(arguments);
  if (!work.ok()) {
    std::cerr << work.error().message << "\n";
    return 2;
  }
  if (!arguments.dump.empty()) {
    const auto& first = work->front();
    std::ofstream(arguments.dump) << json{{"bits", first.problem.bits},
                                          {"width", first.problem.width},
                                          {"score", first.problem.score},
                                          {"budgets", first.budgets}};
  }
  bitalloc::SolveOptions options;
  options.cbc_check_seconds = arguments.cbc_seconds;
  options.time_limit_seconds = arguments.time_limit;
  Tally tally;
  for (const auto& file : *work) {
    if (!measure(file, options, &tally)) {
      return 1;
    }
  }
  const Problem& problem = work->front().problem;
  json out = {{"sites", problem.num_sites()},
              {"candidates", problem.bits[0].size()},
              {"solves", tally.solve_ms.size()},
              {"proven", tally.proven},
              {"gap", tally.gap},
              {"solve_ms", quantiles(tally.solve_ms)},
              {"cbc", tally.cbc}};
  if (arguments.frontier) {
    out["frontier"] = frontier_row(problem);
  }
  if (arguments.plain_cbc > 0) {
    out["plain_cbc"] = plain_cbc(work->front(), arguments, tally.rows);
  }
  if (!arguments.instance.empty()) {
    out["rows"] = tally.rows;
  } else {
    out["kind"] = arguments.kind;
  }
  std::cout << out.dump() << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Times the exact solve");
  app.add_option("--sites", arguments.sites)->check(CLI::PositiveNumber);
  app.add_option("--candidates", arguments.candidates)->check(CLI::PositiveNumber);
  app.add_option("--kind", arguments.kind)
      ->check(CLI::IsMember({"realistic", "ties", "near_ties", "correlated", "uneven", "strong"}));
  app.add_option("--instances", arguments.instances)->check(CLI::PositiveNumber);
  app.add_option("--budgets", arguments.budgets)->check(CLI::PositiveNumber);
  app.add_option("--seed", arguments.seed);
  app.add_option("--cbc-seconds", arguments.cbc_seconds);
  app.add_option("--plain-cbc", arguments.plain_cbc);
  app.add_option("--cbc-limit", arguments.cbc_limit);
  app.add_option("--time-limit", arguments.time_limit);
  app.add_flag("--frontier", arguments.frontier);
  app.add_option("--dump", arguments.dump);
  app.add_option("--instance", arguments.instance)->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  return run(arguments);
}
