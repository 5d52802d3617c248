// Runs simulations by hand: one seed with its whole trace, or many until one fails.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "tests/sim/world.h"

namespace bitalloc::sim {
namespace {

constexpr int kExitViolated = 1;
constexpr int kExitUsage = 2;

struct Options {
  uint64_t seed = 1;
  uint64_t count = 1;
  bool verbose = false;
  bool calm = false;
  std::string mutant;
  int64_t workers = 0;
  int64_t units = 0;
};

constexpr const char* kExamples = R"(Examples:
  simulate --seed 17 --verbose              one seed, every event
  simulate --count 10000                    seeds 1 to 10000, until one fails
  simulate --count 50 --mutant "ack before durable"
  simulate --workers 1000 --units 100000    20 searches at scale

Exit codes: 0 every promise was kept, 1 one was broken, 2 wrong flags.)";

Mutant find_mutant(const std::string& name) {
  for (const auto& entry : kMutants) {
    if (name == entry.name) return entry.mutant;
  }
  return Mutant::kNone;
}

WorldOptions world_of(const Options& options, uint64_t seed) {
  WorldOptions world = options.workers > 0 ? large_world(seed, options.workers, options.units)
                                           : random_world(seed, !options.calm);
  world.mutant = find_mutant(options.mutant);
  world.trace = options.verbose;
  return world;
}

int run_seeds(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  Outcome total;
  for (uint64_t seed = options.seed; seed < options.seed + options.count; ++seed) {
    const WorldOptions world = world_of(options, seed);
    const Outcome outcome = simulate(world);
    for (const std::string& line : outcome.trace) fmt::print("{}\n", line);
    if (!outcome.violations.empty()) {
      fmt::print("{}",
                 failure_report(world, outcome, fmt::format("simulate --seed {} --verbose", seed)));
      return kExitViolated;
    }
    total.steps += outcome.steps;
    total.virtual_ms += outcome.virtual_ms;
    total.units += outcome.units;
    total.grants += outcome.grants;
    total.mishaps += outcome.mishaps;
    total.stale_refused += outcome.stale_refused;
    total.conflicts += outcome.conflicts;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print(
      "{} seeds kept every promise: {} steps, {} h of virtual time, {} units, {} leases, {} "
      "mishaps, {} stale writes refused, {} conflicts; {:.1f} s\n",
      options.count, total.steps, total.virtual_ms / 3'600'000, total.units, total.grants,
      total.mishaps, total.stale_refused, total.conflicts, took.count());
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app{"Simulates the service of bitalloc under faults, in virtual time."};
  Options options;
  app.add_option("--seed", options.seed, "The first seed")->capture_default_str();
  app.add_option("--count", options.count, "How many seeds")->capture_default_str();
  app.add_flag("--verbose", options.verbose, "Print every event");
  app.add_flag("--calm", options.calm, "The same searches and orders without faults");
  app.add_option("--mutant", options.mutant, "Break a part on purpose (see mutant.h)")
      ->check([](const std::string& name) {
        return find_mutant(name) == Mutant::kNone ? "no such mutant" : "";
      });
  app.add_option("--workers", options.workers, "A large world: so many workers");
  app.add_option("--units", options.units, "A large world: so many units");
  app.footer(kExamples);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return run_seeds(options);
}

}  // namespace
}  // namespace bitalloc::sim

int main(int argc, char** argv) { return bitalloc::sim::run(argc, argv); }
