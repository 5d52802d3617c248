// A worker process: mirrors the protocol of worker/service.cc rule by rule (hello and back-off,
// credits, heartbeats, results kept and sent again until they are acknowledged, revoke, failures
// told once, drain, bye), with closed_result() instead of a model.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "tests/sim/process.h"
#include "tests/sim/worker_message.h"

namespace bitalloc::sim {

class SimCoordinator;

struct WorkerOptions {
  int64_t credits = 2;
  TimeMs unit_ms_low = 100;
  TimeMs unit_ms_high = 3'000;
  std::string wrong_model;  // this one's files differ here: units of it end in `mismatch`
};

class SimWorker : public Process {
 public:
  // `endpoint` is who listens at the worker endpoint now, or null.
  SimWorker(Scene& scene, Node node, WorkerOptions options, SimCoordinator* const& endpoint);

  void boot();
  void receive(int64_t socket, const WorkerMessage& message);
  void drain();  // SIGTERM

  const WorkerEpoch& epoch() const { return epoch_; }
  bool ended() const { return !alive(); }
  size_t holds() const { return held_.size(); }

 private:
  enum class State { kQueued, kRunning, kFinished };
  struct Held {
    UnitOrder order;
    std::string fingerprint;
    State state = State::kQueued;
    bool cancel = false;
    std::optional<Event> report;  // WorkerResult or WorkerFail, once finished
    TimeMs sent = 0;
  };
  using HeldList = std::list<std::shared_ptr<Held>>;  // shared with the timer of the running unit

  void on(const Welcome&);
  void on(const Unknown&) { say_hello(); }
  void on(const Pulse&) {}
  void on(const UnitOrder& order);
  void on(const Ack& ack);
  void on(const Revoke& revoke);
  void on(const Drain&) { draining_ = true; }

  static void take_fence(Held& held, Fence fence);

  void compute_next();
  void finish(const std::shared_ptr<Held>& held, double seconds);
  std::vector<std::string> models() const;
  void give_back_queued();
  Event report_of(const UnitOrder& order, double seconds);
  std::optional<Error> failure(const UnitOrder& order, bool& retryable);

  HeldList::iterator find(const std::string& search, const UnitId& unit);
  void say(const Event& event, const std::string& computed_for = "");
  void say_hello();
  void reconnect();
  void step();
  void step_at(TimeMs time);
  void send_reports();
  void announce_credits();
  void heartbeat();
  bool done() const;

  const WorkerOptions options_;
  SimCoordinator* const& endpoint_;
  const WorkerEpoch epoch_;
  SimCoordinator* peer_ = nullptr;  // whom the socket is connected to
  int64_t socket_ = 1;
  HeldList held_;
  bool computing_ = false;
  std::string loaded_model_;  // weights_sha256; one fits
  bool stop_requested_ = false;
  bool draining_ = false;
  bool welcomed_ = false;
  int64_t announced_credits_ = -1;
  int64_t announced_busy_ = -1;
  TimeMs back_off_;
  TimeMs heard_ = 0;
  TimeMs next_hello_ = 0;
  TimeMs next_heartbeat_ = 0;
  TimeMs stop_deadline_ = 0;
  TimeMs step_planned_ = -1;
};

}  // namespace bitalloc::sim
