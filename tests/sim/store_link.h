// The coordinator's side of Redis: mirrors the thread of coordinator/redis_store.cc. One pipeline
// at a time; after a lost connection everything that was not answered is run again, in order; a
// newer coordinator's lock ends it.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "coordinator/store.h"
#include "tests/sim/redis_server.h"

namespace bitalloc::sim {

class StoreLink {
 public:
  static constexpr TimeMs kLockTtlMs = 5'000;

  // `tell` runs in `owner`, as a step of its own for every event.
  StoreLink(Process& owner, Scene& scene, RedisServer& server,
            std::function<void(StoreEvent)> tell);

  // Takes the lock (waits for a stale one) and loads; `opened` gets nothing when that failed.
  using Opened = std::function<void(std::optional<std::vector<SearchRecord>>)>;
  void open(bool take_over, Opened opened);
  void put(StoreOp op);
  bool has_room(size_t count) const;
  size_t unanswered() const { return queue_.size() + batch_.size(); }
  int64_t fence() const { return fence_; }
  // When everything is durable: gives the lock back, then `closed`.
  void close(Step closed);
  // The process has died: what is on the way may arrive cut short, or not at all.
  void die();

 private:
  void connect();
  void try_lock(bool take_over, TimeMs give_up);
  void locked(RedisModel::Acquired acquired, bool take_over, TimeMs give_up);
  void load();
  void renew_regularly();
  void pump();
  void send(const std::shared_ptr<Pipeline>& pipeline, std::function<void(PipelineReply)> then);
  void answered(PipelineReply reply);
  void lost(const std::string& reason);
  void reconnect();
  void reconnected(bool fenced);
  void fenced();
  void tell(StoreEvent event);
  // A request and its answer over the network; `lost` when there is none in time.
  void call(const std::function<void(int64_t call)>& request);
  void back(int64_t call, Step step);

  Process& owner_;
  Scene& scene_;
  RedisServer& server_;
  std::function<void(StoreEvent)> tell_;
  int64_t fence_ = 0;
  bool connected_ = false;
  bool ended_ = false;
  bool told_lost_ = false;
  TimeMs pause_ms_ = 0;
  TimeMs renew_at_ = 0;
  int64_t connection_ = 0;
  int64_t call_ = 0;      // the newest request
  bool waiting_ = false;  // for its answer
  std::deque<StoreOp> queue_;
  std::vector<StoreOp> batch_;  // not answered
  std::shared_ptr<Pipeline> sent_;
  Opened opened_;  // until it is open
  Step closed_;
};

}  // namespace bitalloc::sim
