// The redis-server of a simulated world: takes one pipeline at a time, answers when it is on disk
// (`appendfsync always`). In a crash, of the pipeline that was being written some first part stays
// and nobody is told; what waited behind it is gone.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tests/sim/process.h"
#include "tests/sim/redis_model.h"

namespace bitalloc::sim {

struct Pipeline {
  int64_t fence = 0;
  int64_t connection = 0;
  TimeMs renew_ms = -1;  // the lock first, for so long; −1: not
  std::vector<StoreOp> ops;
  size_t cut = SIZE_MAX;  // the sender died: only so many ops got onto the wire
};

struct PipelineReply {
  bool fenced = false;
  std::vector<StoreDone> done;
};

class RedisServer : public Process {
 public:
  RedisServer(Scene& scene, Node node);

  const RedisModel& model() const { return model_; }
  // A coordinator's connection: `dropped` is called when the server resets it.
  int64_t connect(std::function<void(int64_t connection)> dropped);
  void disconnect(int64_t connection) { connections_.erase(connection); }
  void drop_connections();
  void restart_after(TimeMs ms);  // REQUIRES: it has been killed
  bool is_starting() const { return starting_; }

  // Called when the request has arrived; `reply` runs here when all is on disk, and not at all in a
  // crash.
  void acquire(bool take_over, TimeMs ttl_ms, std::function<void(RedisModel::Acquired)> reply);
  void load(int64_t fence, std::function<void(bool held, std::vector<SearchRecord>)> reply);
  void run_pipeline(std::shared_ptr<const Pipeline> pipeline,
                    std::function<void(PipelineReply)> reply);

 private:
  // Does the first `limit` changes; replies when that was all.
  using Command = std::function<void(size_t limit)>;
  void take(Command command);
  void work();
  void died() override;
  bool apply(const Pipeline& pipeline, size_t limit, PipelineReply& reply);
  void apply_one(int64_t fence, const StoreOp& op, PipelineReply& reply);
  void misbehave(const PutResult& change, const std::string* before);
  void keep_old_copy();

  RedisModel model_;
  RedisModel second_ago_;  // for a mutant
  std::deque<Command> commands_;
  std::map<int64_t, std::function<void(int64_t)>> connections_;
  int64_t next_connection_ = 1;
  bool starting_ = false;
};

}  // namespace bitalloc::sim
