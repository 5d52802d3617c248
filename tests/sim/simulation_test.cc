// Everyday simulation: 500 seeds, runs without interruption beside interrupted ones, and broken
// parts that must be noticed. A failure prints seed, step, invariant and the last events;
// BITALLOC_SEED=n replays that seed alone, BITALLOC_SEEDS=first-last a range.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/sim/world.h"

namespace bitalloc::sim {
namespace {

constexpr uint64_t kSeeds = 500;
constexpr uint64_t kSeedsOfAMutant = 300;

std::string replay_command(uint64_t seed) {
  return fmt::format(
      "BITALLOC_SEED={0} build/tests/sim_test, or with every event: "
      "build/bin/simulate --seed {0} --verbose",
      seed);
}

TEST(Simulation, EverySeedKeepsEveryPromise) {
  const char* only = std::getenv("BITALLOC_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : kSeeds;
  int64_t units = 0;
  int64_t grants = 0;
  int64_t mishaps = 0;
  int64_t stale = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const WorldOptions world = random_world(seed);
    const Outcome outcome = simulate(world);
    ASSERT_TRUE(outcome.violations.empty()) << failure_report(world, outcome, replay_command(seed));
    units += outcome.units;
    grants += outcome.grants;
    mishaps += outcome.mishaps;
    stale += outcome.stale_refused;
  }
  fmt::print("{} seeds: {} units in {} leases, {} mishaps, {} writes under a stale fence refused\n",
             last - first + 1, units, grants, mishaps, stale);
  if (only != nullptr) return;
  // The storm was one: units were leased again, and old coordinators did try to write.
  EXPECT_GT(grants, units);
  EXPECT_GT(mishaps, 1'000);
  EXPECT_GT(stale, 50);
}

TEST(Simulation, AnInterruptedSearchEndsWithTheTableOfAnUninterruptedOne) {
  size_t compared = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    WorldOptions stormy = random_world(seed);
    stormy.faults.wrong_result = 0;
    const Outcome interrupted = simulate(stormy);
    const Outcome calm = simulate(random_world(seed, false));
    ASSERT_TRUE(calm.violations.empty()) << calm.violations[0].invariant << " in seed " << seed;
    EXPECT_EQ(calm.mishaps, 0);
    for (const auto& [search, table] : interrupted.tables) {
      const auto other = calm.tables.find(search);
      if (other == calm.tables.end()) continue;
      EXPECT_EQ(table, other->second) << "search " << search << " of seed " << seed;
      ++compared;
    }
  }
  EXPECT_GT(compared, 40u);
}

TEST(Simulation, TheSameSeedGivesTheSameRun) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    WorldOptions world = random_world(seed);
    world.trace = true;
    const Outcome once = simulate(world);
    const Outcome again = simulate(world);
    ASSERT_GT(once.trace.size(), 50u);
    EXPECT_EQ(once.trace, again.trace) << "seed " << seed;
    EXPECT_EQ(once.steps, again.steps) << "seed " << seed;
  }
}

// A simulator that cannot fail shows nothing: every broken part is noticed within some seeds.
TEST(Simulation, EveryBrokenPartIsNoticed) {
  fmt::print("{:<42} {:>5} {:>8}  {}\n", "broken part", "seed", "step", "what was violated");
  for (const auto& [mutant, name] : kMutants) {
    bool noticed = false;
    for (uint64_t seed = 1; seed <= kSeedsOfAMutant && !noticed; ++seed) {
      WorldOptions world = random_world(seed);
      world.mutant = mutant;
      const Outcome outcome = simulate(world);
      noticed = !outcome.violations.empty();
      if (!noticed) continue;
      const Violation& first = outcome.violations.front();
      fmt::print("{:<42} {:>5} {:>8}  {}\n", name, seed, first.step, first.invariant);
    }
    if (!noticed) fmt::print("{:<42}  not noticed in {} seeds\n", name, kSeedsOfAMutant);
    EXPECT_TRUE(noticed) << name;
  }
}

}  // namespace
}  // namespace bitalloc::sim
