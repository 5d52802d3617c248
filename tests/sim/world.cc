#include "tests/sim/world.h"

#include <algorithm>

#include "tests/sim/scores.h"

namespace bitalloc::sim {
namespace {

constexpr Node kRedisNode = 0;
constexpr Node kClientNode = 1;
constexpr TimeMs kQuietMs = 60'000;  // after everything has ended: what is left must settle
constexpr size_t kReportLines = 60;

class World {
 public:
  explicit World(const WorldOptions& options)
      : options_(options),
        scene_(options.seed, options.mutant),
        redis_(scene_, kRedisNode),
        clients_(scene_, kClientNode, options.scripts, endpoint_) {
    scene_.faults = options.faults;
    if (options.trace) scene_.audit.keep_trace();
    for (const Script& script : options.scripts) {
      for (const Order& order : script.orders) {
        if (order.spec) specs_[fingerprint(*order.spec).sha256] = order.spec;
      }
    }
  }

  Outcome run() {
    supervise();
    clients_.boot();
    if (options_.mishap_every_ms > 0) plan_mishap();
    scene_.timeline.after(options_.faults_ms, [this] { calm_down(); });
    while (!over() && scene_.audit.ok() && scene_.timeline.advance()) {
    }
    if (scene_.audit.ok()) check_end();
    return outcome();
  }

 private:
  Timeline& timeline() { return scene_.timeline; }
  Random& random() { return scene_.random; }

  // ---- supervision --------------------------------------------------------------------------

  void supervise() {
    const bool serving = std::any_of(coordinators_.begin(), coordinators_.end(),
                                     [](const auto& c) { return c->alive(); });
    if (!serving) start_coordinator(false);
    find_endpoint();
    std::erase_if(living_, [](const SimWorker* worker) { return worker->ended(); });
    for (int64_t n = std::ssize(living_); n < options_.workers; ++n) start_worker();
    if (!redis_.alive() && !redis_.is_starting()) {
      redis_.restart_after(random().between(50, 3'000));
    }
    timeline().after(500, [this] { supervise(); });
  }

  // The one that listened last may have been taken over while it began; the others still listen.
  void find_endpoint() {
    if (endpoint_ == nullptr || endpoint_->alive()) return;
    for (const auto& coordinator : coordinators_) {
      if (coordinator->alive() && coordinator->listening()) endpoint_ = coordinator.get();
    }
  }

  void start_coordinator(bool take_over) {
    CoordinatorOptions options = options_.coordinator;
    options.take_over = take_over;
    coordinators_.push_back(
        std::make_unique<SimCoordinator>(scene_, next_node_++, redis_, specs_, options));
    SimCoordinator* started = coordinators_.back().get();
    started->boot([this, started] { endpoint_ = started; });
  }

  void start_worker() {
    WorkerOptions options = options_.worker;
    if (!calm_ && !options_.wrong_model.empty() && random().one_in(4)) {
      options.wrong_model = options_.wrong_model;
    }
    workers_.push_back(std::make_unique<SimWorker>(scene_, next_node_++, options, endpoint_));
    living_.push_back(workers_.back().get());
    workers_.back()->later(random().between(0, 1'000),
                           [worker = workers_.back().get()] { worker->boot(); });
  }

  // ---- mishaps ------------------------------------------------------------------------------

  void plan_mishap() {
    timeline().after(random().between(1, 2 * options_.mishap_every_ms), [this] {
      if (calm_) return;
      const auto& which = options_.mishaps;
      if (!which.empty()) suffer(which[random().below(std::ssize(which))]);
      plan_mishap();
    });
  }

  void suffer(Mishap mishap) {
    ++scene_.audit.mishaps;
    switch (mishap) {
      case Mishap::kCoordinatorCrash:
        return strike_coordinator(true);
      case Mishap::kCoordinatorFreeze:
        return strike_coordinator(false);
      case Mishap::kCoordinatorStop:
        if (SimCoordinator* c = any_coordinator()) c->run([c] { c->stop(); });
        return;
      case Mishap::kCoordinatorClock:
        if (SimCoordinator* c = any_coordinator()) c->jump_clock(random().between(1, 60'000));
        return;
      case Mishap::kSecondCoordinator:
        return start_coordinator(false);
      case Mishap::kTakeOver:
        return start_coordinator(true);
      case Mishap::kRedisCrash:
        return redis_.kill();
      case Mishap::kRedisFreeze:
        return freeze(redis_, 8'000);
      case Mishap::kRedisReset:
        return redis_.drop_connections();
      case Mishap::kRedisClock:
        return redis_.jump_clock(random().between(-10'000, 10'000));
      case Mishap::kWorkerCrash:
        return any_worker().kill();
      case Mishap::kWorkerFreeze:
        return freeze(any_worker(), 60'000);
      case Mishap::kWorkerClock:
        return any_worker().jump_clock(random().between(1, 60'000));
      case Mishap::kWorkerDrain: {
        SimWorker& worker = any_worker();
        return worker.run([&worker] { worker.drain(); });
      }
      case Mishap::kPartition:
        return cut_somewhere();
      case Mishap::kCount:
        return;
    }
  }

  // Now, or between two actions of what it does next.
  void strike_coordinator(bool kill) {
    SimCoordinator* victim = any_coordinator();
    if (victim == nullptr) return;
    if (random().one_in(2)) {
      victim->doom(random().below(6), kill);
    } else if (kill) {
      victim->kill();
    } else {
      victim->freeze();
    }
    if (!kill) timeline().after(random().between(1, 25'000), [victim] { victim->thaw(); });
  }

  void freeze(Process& process, TimeMs longest) {
    scene_.audit.trace([&] { return process.name() + " is frozen"; });
    process.freeze();
    timeline().after(random().between(1, longest), [&process] { process.thaw(); });
  }

  void cut_somewhere() {
    const Node worker = any_worker().node();
    const Node coordinator = endpoint_ == nullptr ? kClientNode : endpoint_->node();
    const TimeMs ms = random().between(100, 20'000);
    switch (random().below(5)) {
      case 0:
        return scene_.network.cut(worker, coordinator, ms);
      case 1:
        return scene_.network.cut(coordinator, worker, ms);
      case 2:
        return scene_.network.cut(Network::kEverybody, coordinator, ms);
      case 3:
        return scene_.network.cut(coordinator, Network::kEverybody, ms);
      default:
        scene_.network.cut(coordinator, kRedisNode, ms);
        return scene_.network.cut(kRedisNode, coordinator, ms);
    }
  }

  SimCoordinator* any_coordinator() {
    std::vector<SimCoordinator*> alive;
    for (const auto& coordinator : coordinators_) {
      if (coordinator->alive()) alive.push_back(coordinator.get());
    }
    return alive.empty() ? nullptr : alive[random().below(std::ssize(alive))];
  }
  SimWorker& any_worker() { return *living_[random().below(std::ssize(living_))]; }

  void calm_down() {
    scene_.audit.trace([] { return "from now on nothing goes wrong"; });
    calm_ = true;
    scene_.faults = {};
    scene_.network.mend();
    redis_.thaw();
    for (auto& coordinator : coordinators_) {
      coordinator->doom(-1, false);
      coordinator->thaw();
    }
    for (SimWorker* worker : living_) {
      worker->thaw();
      if (!options_.wrong_model.empty()) worker->kill();  // the supervisor starts good ones
    }
  }

  // ---- the end ------------------------------------------------------------------------------

  // Everything is as the clients want it, and has been for a while.
  bool over() {
    if (timeline().now() > options_.limit_ms) return true;
    if (!calm_ || timeline().steps() % 64 != 0) return false;
    if (!all_reached()) {
      reached_at_ = -1;
      return false;
    }
    if (reached_at_ < 0) reached_at_ = timeline().now();
    return timeline().now() - reached_at_ > kQuietMs;
  }

  bool all_reached() {
    return std::all_of(clients_.searches().begin(), clients_.searches().end(),
                       [this](const auto& search) { return reached(*search); });
  }

  bool reached(const SimClients::Watched& search) {
    using Kind = ClientRequest::Kind;
    const auto& orders = search.script.orders;
    if (!orders.empty() && orders.front().kind != Kind::kStatus) return false;
    if (orders.size() > 1) return false;
    const SearchRecord* stored = redis_.model().find(search.script.search);
    if (search.script.goal == Script::Goal::kDeleted) return stored == nullptr;
    if (stored == nullptr) return false;
    const SearchState state = stored->status.state;
    if (state == SearchState::kDone) return true;
    if (search.refused && has_ended(state)) return true;  // what has ended is not paused
    // Every worker that was there then had another model: said so, and the search is over.
    if (state == SearchState::kFailed && !options_.wrong_model.empty()) return true;
    if (search.script.goal == Script::Goal::kPaused) return state == SearchState::kPaused;
    return search.script.goal == Script::Goal::kCancelled && has_ended(state);
  }

  bool is_done(const SimClients::Watched& search) {
    return redis_.model().find(search.script.search)->status.state == SearchState::kDone;
  }

  void check_end() {
    for (const auto& search : clients_.searches()) {
      if (!reached(*search)) {
        const SearchRecord* stored = redis_.model().find(search->script.search);
        scene_.audit.violated(
            "every search ends",
            fmt::format("'{}' is {} after {} s", search->script.search,
                        stored ? search_state_name(stored->status.state) : "nowhere",
                        timeline().now() / 1'000));
      } else if (search->script.goal == Script::Goal::kDone && is_done(*search)) {
        check_results(*search);
      }
    }
    if (!scene_.audit.ok()) return;
    for (const auto& coordinator : coordinators_) {
      if (coordinator->alive() && coordinator->listening()) coordinator->check_quiet();
    }
    for (const SimWorker* worker : living_) {
      if (worker->holds() > 0 && !any_paused()) {
        scene_.audit.violated(
            "nothing is held for ever",
            fmt::format("worker {} holds {} units", worker->epoch().value, worker->holds()));
      }
    }
  }

  bool any_paused() {
    return std::any_of(clients_.searches().begin(), clients_.searches().end(),
                       [](const auto& s) { return s->script.goal == Script::Goal::kPaused; });
  }

  // Every unit once, with the value of the closed form (or the wrong one of a faulty worker, where
  // that one was first), so the table of a run without interruption.
  void check_results(const SimClients::Watched& search) {
    const std::string& id = search.script.search;
    const SearchSpec& spec = *search.spec;
    const auto wrong = [&](const std::string& text) {
      scene_.audit.violated("every unit counts exactly once", fmt::format("'{}': {}", id, text));
    };
    if (redis_.model().find(id)->fingerprint.sha256 != fingerprint(spec).sha256) {
      return wrong("the store has another search under this name");
    }
    ScoreTable table(spec);
    bool all_right = true;
    for (const UnitId& unit : plan_units(spec)) {
      const std::string* packed = redis_.model().result(id, unit);
      const std::string* first = scene_.audit.first_result(id, unit);
      if (packed == nullptr || first == nullptr) return wrong(unit_name(unit) + " has no result");
      if (*packed != *first) return wrong(unit_name(unit) + " is not what was written first");
      const bool right = *packed == pack(closed_result(spec, unit));
      if (!right && !scene_.audit.is_wrong_result(*packed)) {
        return wrong(unit_name(unit) + " has a result that nobody computed");
      }
      all_right &= right;
      table.add(*unpack_unit_result(unit, *packed));
      tables_[id] += *packed;
    }
    if (all_right) check_totals(search, table);
  }

  void check_totals(const SimClients::Watched& search, const ScoreTable& table) {
    for (int64_t row = 0; row < search.spec->num_rows(); ++row) {
      for (int64_t column = 0; column < search.spec->num_columns(); ++column) {
        const double sum = table.score(row, CandidateIndex(column)).kl_sum_nats;
        if (sum == closed_total(*search.spec, row, column)) continue;
        scene_.audit.violated(
            "every unit counts exactly once",
            fmt::format("row {} of '{}' sums to {}", row, search.script.search, sum));
      }
    }
  }

  Outcome outcome() {
    const Audit& audit = scene_.audit;
    Outcome outcome{audit.violations(), audit.lines(), tables_, timeline().steps(),
                    timeline().now()};
    for (const auto& search : clients_.searches()) {
      if (search->spec) outcome.units += std::ssize(plan_units(*search->spec));
    }
    outcome.grants = audit.grants;
    outcome.mishaps = audit.mishaps;
    outcome.stale_refused = audit.stale_refused();
    outcome.conflicts = audit.conflicts;
    return outcome;
  }

  const WorldOptions options_;
  Scene scene_;
  Specs specs_;
  RedisServer redis_;
  SimCoordinator* endpoint_ = nullptr;  // who listened last
  SimClients clients_;
  std::vector<std::unique_ptr<SimCoordinator>> coordinators_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<SimWorker*> living_;
  Node next_node_ = 10;
  bool calm_ = false;
  TimeMs reached_at_ = -1;
  std::map<std::string, std::string> tables_;
};

}  // namespace

Outcome simulate(const WorldOptions& options) { return World(options).run(); }

std::string failure_report(const WorldOptions& options, const Outcome& outcome,
                           const std::string& replay) {
  if (outcome.violations.empty()) return "";
  WorldOptions again = options;
  again.trace = true;
  const Outcome traced = simulate(again);
  std::string report = fmt::format("seed {} fails; replay with: {}\n", options.seed, replay);
  for (const Violation& violation : outcome.violations) {
    report += fmt::format("  step {}, {} ms: {}: {}\n", violation.step, violation.time,
                          violation.invariant, violation.text);
  }
  report += "the last events:\n";
  const auto& lines = traced.trace;
  for (size_t i = lines.size() - std::min(lines.size(), kReportLines); i < lines.size(); ++i) {
    report += "  " + lines[i] + "\n";
  }
  return report;
}

}  // namespace bitalloc::sim
