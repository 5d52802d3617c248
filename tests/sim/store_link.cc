#include "tests/sim/store_link.h"

#include <algorithm>

namespace bitalloc::sim {
namespace {

constexpr size_t kCapacity = 32'768;
constexpr size_t kMaxBatch = 256;
constexpr TimeMs kTimeoutMs = 5'000;
constexpr TimeMs kMaxPauseMs = 2'000;

}  // namespace

StoreLink::StoreLink(Process& owner, Scene& scene, RedisServer& server,
                     std::function<void(StoreEvent)> tell)
    : owner_(owner), scene_(scene), server_(server), tell_(std::move(tell)) {}

// ---- requests -----------------------------------------------------------------------------------

void StoreLink::call(const std::function<void(int64_t call)>& request) {
  const int64_t number = ++call_;
  waiting_ = true;
  const TimeMs late = scene_.random.one_in(scene_.faults.late_pipeline) ? 6'000 : 0;
  const Step arrive = [this, request, number] { server_.run([=] { request(number); }); };
  if (late > 0) {
    scene_.timeline.after(late, arrive);
  } else {
    scene_.network.send_in_order(owner_.node(), server_.node(), arrive);
  }
  owner_.later(kTimeoutMs, [this, number] {
    if (waiting_ && number == call_) lost("no answer in 5 s");
  });
}

void StoreLink::back(int64_t call, Step step) {
  scene_.network.send_in_order(server_.node(), owner_.node(), [=, this] {
    owner_.run([=, this] {
      if (!waiting_ || call != call_ || ended_) return;
      waiting_ = false;
      step();
    });
  });
}

// ---- opening ------------------------------------------------------------------------------------

void StoreLink::connect() {
  connection_ = server_.connect([this](int64_t connection) {
    owner_.later(1, [this, connection] {
      if (connection == connection_) lost("connection reset");
    });
  });
}

void StoreLink::open(bool take_over, Opened opened) {
  opened_ = std::move(opened);
  connect();
  try_lock(take_over, owner_.clock() + kLockTtlMs + 500);
}

void StoreLink::try_lock(bool take_over, TimeMs give_up) {
  call([=, this](int64_t number) {
    server_.acquire(take_over, kLockTtlMs, [=, this](RedisModel::Acquired acquired) {
      back(number, [=, this] { locked(acquired, take_over, give_up); });
    });
  });
}

void StoreLink::locked(RedisModel::Acquired acquired, bool take_over, TimeMs give_up) {
  fence_ = acquired.fence;
  if (fence_ != 0) return load();
  if (owner_.clock() > give_up) return lost("another coordinator serves this Redis");
  owner_.later(std::clamp<TimeMs>(acquired.stale_in_ms, 10, 250),
               [=, this] { try_lock(take_over, give_up); });
}

void StoreLink::load() {
  call([this](int64_t number) {
    server_.load(fence_, [this, number](bool held, const std::vector<SearchRecord>& records) {
      back(number, [this, held, records] {
        if (!held) return lost("a newer coordinator has taken over");
        connected_ = true;
        std::exchange(opened_, nullptr)(records);
        renew_regularly();
      });
    });
  });
}

// ---- changes ------------------------------------------------------------------------------------

void StoreLink::put(StoreOp op) {
  queue_.push_back(std::move(op));
  BA_CHECK(unanswered() <= kCapacity, "the store's queue is full despite admission");
  pump();
}

bool StoreLink::has_room(size_t count) const { return unanswered() + count <= kCapacity; }

void StoreLink::renew_regularly() {
  pump();
  if (!ended_) owner_.later(kLockTtlMs / 5, [this] { renew_regularly(); });
}

void StoreLink::pump() {
  if (!connected_ || waiting_ || ended_) return;
  while (!queue_.empty() && batch_.size() < kMaxBatch) {
    batch_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  const bool close = closed_ != nullptr && batch_.empty();
  const bool renew = owner_.clock() >= renew_at_;
  if (batch_.empty() && !renew && !close) return;
  auto pipeline = std::make_shared<Pipeline>();
  pipeline->fence = fence_;
  pipeline->ops = batch_;
  if (renew) pipeline->renew_ms = kLockTtlMs;
  if (renew) renew_at_ = owner_.clock() + kLockTtlMs / 5;
  if (close) pipeline->renew_ms = 0;
  send(pipeline, [this](PipelineReply reply) { answered(std::move(reply)); });
  if (close) {
    ended_ = true;
    closed_();
  }
}

void StoreLink::send(const std::shared_ptr<Pipeline>& pipeline,
                     std::function<void(PipelineReply)> then) {
  sent_ = pipeline;
  pipeline->connection = connection_;
  call([=, this](int64_t number) {
    server_.run_pipeline(
        pipeline, [=, this](const PipelineReply& reply) { back(number, [=] { then(reply); }); });
  });
}

void StoreLink::answered(PipelineReply reply) {
  if (reply.fenced) return fenced();
  batch_.clear();
  for (StoreDone& done : reply.done) tell(std::move(done));
  pump();
}

void StoreLink::close(Step closed) {
  closed_ = std::move(closed);
  pump();
}

void StoreLink::die() {
  ended_ = true;
  server_.disconnect(connection_);
  if (sent_ != nullptr) sent_->cut = static_cast<size_t>(scene_.random.below(8));
}

// ---- losses -------------------------------------------------------------------------------------

void StoreLink::tell(StoreEvent event) {
  owner_.later(0, [this, event = std::move(event)] { tell_(event); });
}

void StoreLink::fenced() {
  ended_ = true;
  tell(StoreFenced{"a newer coordinator has taken over"});
}

void StoreLink::lost(const std::string& reason) {
  if (ended_) return;
  if (opened_ != nullptr) {
    ended_ = true;
    return std::exchange(opened_, nullptr)(std::nullopt);
  }
  pause_ms_ = told_lost_ ? std::min(2 * pause_ms_, kMaxPauseMs) : 50;
  if (!told_lost_) tell(StoreLost{reason});
  told_lost_ = true;
  connected_ = waiting_ = false;
  ++call_;  // what is still answered is too late
  server_.disconnect(connection_);
  owner_.later(pause_ms_, [this] { reconnect(); });
}

void StoreLink::reconnect() {
  if (ended_) return;
  if (!server_.alive()) return lost("connection refused");
  connect();
  auto renewal = std::make_shared<Pipeline>();
  renewal->fence = fence_;
  renewal->renew_ms = kLockTtlMs;
  send(renewal, [this](const PipelineReply& reply) { reconnected(reply.fenced); });
}

void StoreLink::reconnected(bool is_fenced) {
  if (is_fenced) return fenced();
  connected_ = true;
  told_lost_ = false;
  tell(StoreBack{});
  pump();
}

}  // namespace bitalloc::sim
