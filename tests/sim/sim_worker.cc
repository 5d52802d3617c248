#include "tests/sim/sim_worker.h"

#include <algorithm>

#include "tests/sim/scores.h"
#include "tests/sim/sim_coordinator.h"

namespace bitalloc::sim {
namespace {

constexpr TimeMs kFirstBackOffMs = 1'000;
constexpr TimeMs kLongestBackOffMs = 32'000;
constexpr TimeMs kResendMs = 5'000;
constexpr TimeMs kHeartbeatMs = 1'000;
constexpr TimeMs kSilentMs = 5'000;
constexpr TimeMs kGraceMs = 30'000;
constexpr TimeMs kNever = -1'000'000;  // sent so long ago that it is due

}  // namespace

SimWorker::SimWorker(Scene& scene, Node node, WorkerOptions options,
                     SimCoordinator* const& endpoint)
    : Process(scene, node, fmt::format("w{}", node)),
      options_(std::move(options)),
      endpoint_(endpoint),
      epoch_(name()),
      back_off_(kFirstBackOffMs) {}

void SimWorker::boot() {
  heard_ = clock();
  say_hello();
  step();
}

// ---- computing ----------------------------------------------------------------------------------

void SimWorker::compute_next() {
  if (computing_) return;
  const auto queued = std::find_if(held_.begin(), held_.end(),
                                   [](const auto& held) { return held->state == State::kQueued; });
  if (queued == held_.end()) return;
  computing_ = true;
  (*queued)->state = State::kRunning;
  loaded_model_ = (*queued)->order.spec->model.weights_sha256;
  const TimeMs took = scene_.random.between(options_.unit_ms_low, options_.unit_ms_high);
  later(took, [this, held = *queued, took] { finish(held, static_cast<double>(took) / 1e3); });
}

void SimWorker::finish(const std::shared_ptr<Held>& held, double seconds) {
  computing_ = false;
  held->state = State::kFinished;
  if (held->cancel) {
    held_.remove(held);
  } else {
    held->report = report_of(held->order, seconds);
    held->sent = kNever;
  }
  compute_next();
  step();
}

std::optional<Error> SimWorker::failure(const UnitOrder& order, bool& retryable) {
  retryable = false;
  if (order.spec->model.name == options_.wrong_model) {
    return mismatch("the weights here are others", "model");
  }
  if (scene_.random.one_in(scene_.faults.broken_unit)) return unsupported("no way", "format");
  retryable = true;
  if (scene_.random.one_in(scene_.faults.failed_unit)) return internal_error("a kernel failed");
  return std::nullopt;
}

Event SimWorker::report_of(const UnitOrder& order, double seconds) {
  bool retryable = false;
  if (const auto error = failure(order, retryable)) {
    return event::WorkerFail{epoch_, order.search, order.unit, order.fence, *error, retryable};
  }
  UnitResult result = closed_result(*order.spec, order.unit);
  if (!result.sums.empty() && scene_.random.one_in(scene_.faults.wrong_result)) {
    result.sums[0] += 1;
    scene_.audit.sent_wrong_result(pack(result));
  }
  return event::WorkerResult{epoch_, order.search, order.fence, seconds, "", std::move(result)};
}

// ---- messages -----------------------------------------------------------------------------------

void SimWorker::say(const Event& event, const std::string& computed_for) {
  if (peer_ == nullptr || !peer_->alive()) peer_ = endpoint_;  // ZeroMQ connects again by itself
  if (peer_ == nullptr) return;
  scene_.network.send(node(), peer_->node(), [=, this, to = peer_, socket = socket_] {
    to->run([=, this] { to->from_worker(event, computed_for, *this, socket); });
  });
}

void SimWorker::say_hello() {
  say(event::WorkerHello{epoch_, {{"models", models()}}});
  welcomed_ = false;
  next_hello_ = clock() + back_off_;
  back_off_ = std::min(2 * back_off_, kLongestBackOffMs);
}

void SimWorker::reconnect() {
  ++socket_;
  peer_ = endpoint_;
  heard_ = clock();
  say_hello();
}

void SimWorker::receive(int64_t socket, const WorkerMessage& message) {
  if (socket != socket_) return;  // of an old conversation
  heard_ = clock();
  std::visit([this](const auto& m) { on(m); }, message);
  if (alive()) step();
}

void SimWorker::on(const Welcome&) {
  if (welcomed_) return;
  welcomed_ = true;
  back_off_ = kFirstBackOffMs;
  announced_credits_ = -1;
  next_heartbeat_ = clock();
  for (auto& held : held_) held->sent = kNever;
}

SimWorker::HeldList::iterator SimWorker::find(const std::string& search, const UnitId& unit) {
  return std::find_if(held_.begin(), held_.end(), [&](const auto& held) {
    return held->order.search == search && held->order.unit == unit;
  });
}

void SimWorker::on(const UnitOrder& order) {
  if (order.unit.kind == UnitKind::kScore && order.amax != closed_amax(*order.spec)) {
    scene_.audit.violated("scores wait for their calibration", unit_name(order.unit));
  }
  for (auto& held : held_) {
    const bool same = held->order.search == order.search && held->order.unit == order.unit;
    if (same && !held->cancel) return take_fence(*held, order.fence);
  }
  held_.push_back(std::make_shared<Held>());
  held_.back()->order = order;
  if (scene_.mutant != Mutant::kSaysNoFingerprint) {
    held_.back()->fingerprint = fingerprint(*order.spec).sha256;
  }
  compute_next();
}

// Granted again: what there is, or will be, is delivered under the newest lease.
void SimWorker::take_fence(Held& held, Fence fence) {
  held.order.fence = fence;
  held.sent = kNever;
  if (!held.report) return;
  if (auto* result = std::get_if<event::WorkerResult>(&*held.report)) result->fence = fence;
  if (auto* failure = std::get_if<event::WorkerFail>(&*held.report)) failure->fence = fence;
}

void SimWorker::on(const Ack& ack) {
  const auto held = find(ack.search, ack.unit);
  if (held != held_.end() && (*held)->state == State::kFinished) held_.erase(held);
}

void SimWorker::on(const Revoke& revoke) {
  const auto held = find(revoke.search, revoke.unit);
  if (held == held_.end() || (*held)->order.fence > revoke.fence) return;  // granted again since
  (*held)->cancel = true;
  if ((*held)->state != State::kRunning) held_.erase(held);
}

void SimWorker::drain() {
  if (stop_requested_) return;
  stop_requested_ = draining_ = true;
  stop_deadline_ = clock() + kGraceMs;
  give_back_queued();
  step();
}

void SimWorker::give_back_queued() {
  std::vector<Event> given_back;
  for (const auto& held : held_) {
    if (held->state != State::kQueued) continue;
    const UnitOrder& order = held->order;
    given_back.push_back(event::WorkerGiveBack{epoch_, order.search, order.unit, order.fence});
  }
  std::erase_if(held_, [](const auto& held) { return held->state == State::kQueued; });
  if (!welcomed_) return;
  announce_credits();
  for (const Event& event : given_back) say(event);
}

std::vector<std::string> SimWorker::models() const {
  if (loaded_model_.empty()) return {};
  return {loaded_model_};
}

// ---- time ---------------------------------------------------------------------------------------

void SimWorker::step() {
  if (done()) {
    say(event::WorkerBye{epoch_});
    return kill();
  }
  if (welcomed_ && clock() - heard_ > kSilentMs) reconnect();
  if (welcomed_) {
    send_reports();
    const bool beat = clock() >= next_heartbeat_;
    if (beat && scene_.mutant != Mutant::kSaysCreditsOnce) announced_credits_ = -1;
    announce_credits();
    if (beat) heartbeat();
    step_at(next_heartbeat_);
  } else {
    if (clock() >= next_hello_) say_hello();
    step_at(next_hello_);
  }
}

// At that time at the latest; the production loop wakes once a second anyway.
void SimWorker::step_at(TimeMs time) {
  const TimeMs wait = std::clamp<TimeMs>(time - clock(), 1, kHeartbeatMs);
  const TimeMs at = scene_.timeline.now() + wait;
  if (step_planned_ > scene_.timeline.now() && step_planned_ <= at) return;
  step_planned_ = at;
  later(wait, [this] { step(); });
}

void SimWorker::send_reports() {
  for (auto it = held_.begin(); it != held_.end();) {
    Held& held = **it;
    const bool due = held.report && clock() - held.sent >= kResendMs;
    if (due) {
      say(*held.report, held.fingerprint);
      held.sent = clock();
    }
    const bool told_once = due && std::holds_alternative<event::WorkerFail>(*held.report);
    it = told_once ? held_.erase(it) : std::next(it);
  }
}

void SimWorker::announce_credits() {
  const int64_t busy = std::count_if(
      held_.begin(), held_.end(), [](const auto& held) { return held->state != State::kFinished; });
  const int64_t credits = draining_ ? 0 : std::max<int64_t>(0, options_.credits - busy);
  if (credits == announced_credits_ && credits == 0) return;
  if (credits == announced_credits_ && busy == announced_busy_) return;
  announced_credits_ = credits;
  announced_busy_ = busy;
  say(event::WorkerReady{epoch_, credits, models()});
}

void SimWorker::heartbeat() {
  event::WorkerHeartbeat beat{epoch_, {}, models()};
  for (const auto& held : held_) {
    if (held->cancel) continue;
    beat.units.push_back({held->order.search, held->order.unit, held->order.fence});
  }
  say(beat);
  next_heartbeat_ = clock() + kHeartbeatMs;
}

bool SimWorker::done() const {
  return draining_ && (held_.empty() || (stop_requested_ && clock() >= stop_deadline_));
}

}  // namespace bitalloc::sim
