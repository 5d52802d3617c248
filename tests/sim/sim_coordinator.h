// A coordinator process: the production Queue, with what the front does around it (front_worker.cc,
// front_client.cc) and a StoreLink. Every event and every action it emits passes the audit.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "coordinator/queue.h"
#include "tests/sim/client_request.h"
#include "tests/sim/process.h"
#include "tests/sim/saboteur.h"
#include "tests/sim/store_link.h"
#include "tests/sim/worker_message.h"

namespace bitalloc::sim {

class SimWorker;

// Specs by fingerprint: what travels as JSON in reality.
using Specs = std::map<std::string, std::shared_ptr<const SearchSpec>>;

struct CoordinatorOptions {
  QueueOptions queue;
  TimeMs tick_ms = 100;
  bool take_over = false;
  bool audit_everything = true;  // also what costs time in proportion to all units
};

class SimCoordinator : public Process {
 public:
  SimCoordinator(Scene& scene, Node node, RedisServer& redis, const Specs& specs,
                 CoordinatorOptions options);

  // Takes the lock, loads, then calls `listening`; or ends.
  void boot(Step listening);
  // `computed_for`: the fingerprint that a result says; empty: none.
  void from_worker(const Event& event, const std::string& computed_for, SimWorker& worker,
                   int64_t socket);
  void from_client(const ClientRequest& request, Answer answer);
  void stop();                                 // SIGTERM
  void doom(int64_t actions, bool kill_then);  // dies, or freezes, after so many more actions

  const Queue* queue() const { return queue_.get(); }
  bool listening() const { return listening_; }
  bool holds_lock() const { return redis_.model().fence() == link_.fence(); }
  // Nothing is on its way any more: to the store, or to be finished.
  void check_quiet();

 private:
  struct Peer {
    SimWorker* worker = nullptr;
    int64_t socket = 0;
  };
  void died() override;
  void woke() override { perform_all(); }
  void begin(std::vector<SearchRecord> records, const Step& listening);
  void tick();
  void on_result(const event::WorkerResult& result, const std::string& computed_for);
  void handle(Event event);
  void perform_all();
  void on_store(const StoreEvent& event);
  std::optional<Event> change_event(const ClientRequest& request, uint64_t number) const;
  void answer(uint64_t request, ClientReply reply);
  void send(const WorkerEpoch& epoch, const WorkerMessage& message);

  void perform(action::Persist& action);
  void perform(const action::SendUnit& action);
  void perform(const action::SendAck& action);
  void perform(const action::SendReject& action);
  void perform(const action::SendRevoke& action);
  void perform(const action::WriteCheckpoint& action);
  void perform(const action::Publish&) {}
  void perform(const action::Forget& action) { tokens_.erase(action.search); }
  void perform(const action::ReplyStatus& action);
  void perform(const action::ReplyDeleted& action);
  void perform(const action::ReplyError& action);
  void perform(const action::Log& action);

  // The audit of what the queue says, before it is carried out.
  void inspect(const action::Persist& action);
  void inspect(const action::SendUnit& action);
  void inspect(const action::SendAck& action);
  void inspect(const action::ReplyStatus& action);
  void inspect(const action::ReplyDeleted& action);
  void inspect(const action::Log& action);
  template <typename Other>
  void inspect(const Other&) {}
  void check_bounds();
  void check_counts(const Search& search);
  void check_priority(const Search& granted, const WorkerEpoch& worker);

  RedisServer& redis_;
  const Specs& specs_;
  const CoordinatorOptions options_;
  Saboteur saboteur_;
  StoreLink link_;
  std::unique_ptr<Queue> queue_;
  bool listening_ = false;
  bool stopping_ = false;
  std::deque<Action> outbox_;
  std::map<WorkerEpoch, Peer> peers_;
  std::set<std::string> tokens_;  // searches whose tokens are here
  struct Waiting {
    ClientRequest request;
    Answer answer;
  };
  std::map<uint64_t, Waiting> requests_;
  std::map<std::string, int64_t> granted_fences_;  // the newest of each search
  uint64_t next_request_ = 1;
  int64_t doom_after_ = -1;
  bool doom_kills_ = false;
};

}  // namespace bitalloc::sim
