// Which worlds there are.
#include <algorithm>

#include "tests/sim/scores.h"
#include "tests/sim/world.h"

namespace bitalloc::sim {
namespace {

using Kind = ClientRequest::Kind;
using Goal = Script::Goal;

std::shared_ptr<const SearchSpec> random_spec(Random& random, const std::string& salt) {
  const std::string model = random.one_in(3) ? "other" : "model";
  return std::make_shared<SearchSpec>(
      make_spec(salt, model, random.between(1, 8), random.between(1, 10), random.one_in(2)));
}

// Orders between the submission and the goal, in any sequence a client may think of.
void add_whims(Random& random, Script& script) {
  for (int64_t n = random.below(4); n > 0; --n) {
    const TimeMs wait = random.between(100, 15'000);
    switch (random.below(5)) {
      case 0:
      case 1:
        script.orders.push_back({Kind::kPause, wait, 0, nullptr});
        script.orders.push_back({Kind::kResume, random.between(100, 8'000), 0, nullptr});
        break;
      case 2:
      case 3:
        script.orders.push_back({Kind::kReprioritize, wait, random.below(3), nullptr});
        break;
      default:
        script.orders.push_back({Kind::kCancel, wait, 0, nullptr});
        break;
    }
  }
}

Script random_script(Random& random, int64_t number) {
  Script script;
  script.search = fmt::format("s{}", number);
  const auto spec = random_spec(random, script.search);
  const int64_t priority = random.below(3);
  script.orders.push_back({Kind::kSubmit, random.below(10'000), priority, spec});
  add_whims(random, script);
  const TimeMs wait = random.between(100, 15'000);
  if (random.one_in(6)) {  // another search under the same name
    script.orders.push_back({Kind::kDelete, wait, 0, nullptr});
    script.orders.push_back({Kind::kSubmit, random.below(1'000), priority,
                             std::make_shared<SearchSpec>(make_spec(
                                 script.search + " again", spec->model.name,
                                 std::ssize(spec->sites), spec->sequences, random.one_in(2)))});
  } else if (random.one_in(8)) {
    script.orders.push_back({Kind::kPause, wait, 0, nullptr});
    script.goal = Goal::kPaused;
  } else if (random.one_in(8)) {
    script.orders.push_back({Kind::kCancel, wait, 0, nullptr});
    script.goal = Goal::kCancelled;
  } else if (random.one_in(8)) {
    script.orders.push_back({Kind::kDelete, wait, 0, nullptr});
    script.goal = Goal::kDeleted;
  }
  return script;
}

// Every seed has its own mixture, so that rare combinations are not drowned by all others.
void add_faults(Random& random, WorldOptions& options) {
  for (int i = 0; i < static_cast<int>(Mishap::kCount); ++i) {
    if (random.one_in(3)) options.mishaps.push_back(static_cast<Mishap>(i));
  }
  options.mishap_every_ms = random.between(500, 8'000);
  NetworkFaults& network = options.faults.network;
  if (random.one_in(2)) network.drop = random.between(5, 60);
  if (random.one_in(2)) network.duplicate = random.between(3, 40);
  if (random.one_in(2)) network.slow = random.between(5, 60);
  if (random.one_in(3)) options.faults.late_pipeline = random.between(10, 200);
  if (random.one_in(3)) options.faults.failed_unit = random.between(4, 40);
  if (random.one_in(6)) options.faults.broken_unit = random.between(20, 100);
  if (random.one_in(4)) options.faults.wrong_result = random.between(3, 30);
  if (random.one_in(4)) options.wrong_model = random.one_in(2) ? "other" : "model";
}

}  // namespace

WorldOptions random_world(uint64_t seed, bool faults) {
  Random random(seed * 2 + 1);  // not the stream of the run itself
  WorldOptions options;
  options.seed = seed;
  options.workers = random.between(1, 6);
  options.worker.credits = random.between(1, 3);
  options.worker.unit_ms_high = random.one_in(4) ? 12'000 : 2'500;
  options.faults_ms = random.between(20'000, 60'000);
  for (int64_t n = random.between(1, 4); n > 0; --n) {
    options.scripts.push_back(random_script(random, n));
  }
  if (faults) {
    add_faults(random, options);
  } else {
    options.mishap_every_ms = 0;
  }
  return options;
}

WorldOptions large_world(uint64_t seed, int64_t workers, int64_t units) {
  constexpr int64_t kSearches = 20;
  Random random(seed * 2 + 1);
  WorldOptions options;
  options.seed = seed;
  options.workers = workers;
  options.worker.unit_ms_low = 500;
  options.worker.unit_ms_high = 4'000;
  options.coordinator.tick_ms = 250;
  options.coordinator.audit_everything = false;
  options.faults_ms = 60'000;
  options.mishap_every_ms = 1'000;
  options.mishaps = {Mishap::kCoordinatorCrash, Mishap::kRedisReset,   Mishap::kWorkerCrash,
                     Mishap::kWorkerCrash,      Mishap::kWorkerFreeze, Mishap::kPartition,
                     Mishap::kTakeOver,         Mishap::kWorkerDrain};
  options.faults.network = {200, 200, 200};
  options.faults.failed_unit = 1'000;
  const int64_t rows = 50;
  for (int64_t n = 0; n < kSearches; ++n) {
    Script script;
    script.search = fmt::format("s{:02}", n);
    const auto spec =
        std::make_shared<SearchSpec>(make_spec(script.search, n % 4 == 0 ? "other" : "model", rows,
                                               2 * units / kSearches / rows, n % 2 == 0));
    script.orders.push_back({Kind::kSubmit, random.below(5'000), random.below(3), spec});
    options.scripts.push_back(std::move(script));
  }
  return options;
}

}  // namespace bitalloc::sim
