// The coordinator's event loop: it turns messages into events of the queue and the queue's actions
// into messages and changes of the store.
//
// Thread rule: everything runs on the loop's thread, which alone owns queue, sockets and tokens.
// post() is the only function for other threads. Work that takes long runs on two background
// threads: one checks submissions and files, one solves.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint.h"
#include "common/model_roots.h"
#include "common/zmq/socket.h"
#include "coordinator/background.h"
#include "coordinator/channel.h"
#include "coordinator/queue.h"
#include "coordinator/request_port.h"
#include "coordinator/store.h"
#include "coordinator/submission.h"
#include "coordinator/zap_handler.h"
#include "solver/reprover.h"

namespace bitalloc {

// The steady clock of the loop, for the queue's times.
TimeMs steady_now_ms();

struct FrontOptions {
  std::vector<std::string> client_endpoints;
  std::vector<std::string> worker_endpoints;
  std::string server_secret_key;  // Z85; empty: no keys (see DoorLock)
  AccessList* access = nullptr;   // with keys; outlives the front
  std::string checkpoint_dir;     // empty: checkpoints are written on request only
  ModelRoots model_roots;         // where the models of searches may be
  bool store_durable = true;      // for `info`
  std::string store_detail;
  QueueOptions queue;
};

class Front : public RequestPort {
 public:
  // `loop` and `store` outlive this object. `fatal` is called when the store is lost for good.
  Front(boost::asio::io_context& loop, ResultStore& store, FrontOptions options,
        std::function<void(const std::string&)> fatal);

  // Takes over what the store holds, then listens. Errors: kInvalidArgument, kUnavailable.
  Status start(std::vector<StoredSearch> searches);
  // Any thread.
  void post(StoreEvent event);
  // Grants and accepts nothing any more; the store can be closed then.
  void stop();

  // Clients of this process (front_local.cc).
  Ticket request(wire::Message message, Reply reply) override;
  void forget(Ticket ticket) override;
  bool ready() const override;

 private:
  struct Request {  // a client that waits for an answer
    std::string peer;
    wire::Message message;  // without blobs
  };
  struct Watch {
    std::string search;
    TimeMs asked = 0;  // last time the client said that it is there
    TimeMs told = 0;
    bool changed = true;
  };
  using Snapshot = std::shared_ptr<const Checkpoint>;  // shared with the solver's thread
  using Answer = std::function<Result<Json>(const Checkpoint&)>;

  // Loop (front.cc).
  void apply(const Event& event);
  void perform(action::Persist& action);
  void perform(const action::SendUnit& action);
  void perform(const action::SendAck& action);
  void perform(const action::SendReject& action);
  void perform(const action::SendRevoke& action);
  void perform(const action::WriteCheckpoint& action);
  void perform(const action::Publish& action);
  void perform(const action::Forget& action);
  void perform(const action::ReplyStatus& action);
  void perform(const action::ReplyDeleted& action);
  void perform(const action::ReplyError& action);
  void perform(const action::Log& action);
  void on_store(StoreEvent event);
  void tick();

  // Workers (front_worker.cc).
  void on_worker(Socket::Received received);
  Status dispatch_worker(const wire::Message& message, const std::string& peer,
                         const WorkerEpoch& epoch);
  Status on_hello(const wire::Message& message, const std::string& peer, const WorkerEpoch& epoch);
  Status on_heartbeat(const wire::Message& message, const std::string& peer,
                      const WorkerEpoch& epoch);
  Status on_result(const wire::Message& message, const WorkerEpoch& epoch);
  Status on_fail(const wire::Message& message, const std::string& peer, const WorkerEpoch& epoch);
  void send_worker(const WorkerEpoch& epoch, const wire::Message& message);

  // Clients (front_client.cc).
  void on_client(Socket::Received received);
  Status dispatch_client(wire::Message& message, const std::string& peer);
  Status on_submit(wire::Message& message, const std::string& peer);
  Status on_change(const wire::Message& message, const std::string& peer);
  Status on_delete(const wire::Message& message, const std::string& peer);
  Status on_watch(const wire::Message& message, const std::string& peer);
  Status on_rebudget(const wire::Message& message, const std::string& peer);
  Status on_assignment(const wire::Message& message, const std::string& peer);
  Status on_checkpoint(const wire::Message& message, const std::string& peer);
  // Answers from a snapshot of the search, on the solver's thread.
  Status solve_later(const wire::Message& message, const std::string& peer, Answer answer);
  Result<const Search*> named_search(const wire::Message& message) const;
  Json info_json() const;
  Json list_json() const;
  Json status_of(const Search& search) const;
  uint64_t remember(const wire::Message& message, const std::string& peer);
  void answer(uint64_t request, const Result<Json>& header);
  void reply(const wire::Message& message, const std::string& peer, const Result<Json>& header);
  void tell_watchers();
  void send_client(const wire::Message& message, const std::string& peer);
  static bool is_local(const std::string& peer);
  Snapshot snapshot(const Search& search);
  const std::string& spec_text(const Search& search);

  boost::asio::io_context& loop_;
  ResultStore& store_;
  const FrontOptions options_;
  std::function<void(const std::string&)> fatal_;
  Queue queue_;
  ZmqContext context_;
  std::unique_ptr<ZapHandler> zap_;  // null without keys; before the doors it guards
  Channel clients_;
  Channel workers_;
  boost::asio::steady_timer timer_;
  std::map<std::string, SharedTokens> tokens_;       // of searches that have not ended
  std::map<std::string, std::string> spec_texts_;    // JSON of specs, as `unit` carries them
  std::map<WorkerEpoch, std::string> worker_peers_;  // where a worker was last heard
  std::map<uint64_t, Request> requests_;
  std::map<std::pair<std::string, std::string>, Watch> watches_;  // by peer, correlation id
  std::map<std::string, Snapshot> snapshots_;                     // dropped on every change
  std::map<std::string, Reply> local_clients_;                    // by peer
  uint64_t next_request_ = 1;
  Ticket next_ticket_ = 1;
  bool stopped_ = false;
  // Last, so that their threads end first.
  Background checker_;
  Reprover reprover_;  // of what solver_ answers
  Background solver_;
};

}  // namespace bitalloc
