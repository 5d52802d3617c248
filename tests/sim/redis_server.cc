#include "tests/sim/redis_server.h"

#include <algorithm>

namespace bitalloc::sim {

RedisServer::RedisServer(Scene& scene, Node node) : Process(scene, node, "redis") {
  if (scene.mutant == Mutant::kLosesLastSecond) keep_old_copy();
}

int64_t RedisServer::connect(std::function<void(int64_t)> dropped) {
  connections_[next_connection_] = std::move(dropped);
  return next_connection_++;
}

void RedisServer::drop_connections() {
  for (auto& [connection, dropped] : std::exchange(connections_, {})) dropped(connection);
}

void RedisServer::restart_after(TimeMs ms) {
  starting_ = true;
  scene_.timeline.after(ms, [this] {
    starting_ = false;
    revive();
    if (scene_.mutant == Mutant::kLosesLastSecond) keep_old_copy();
    scene_.audit.trace([] { return "redis starts"; });
  });
}

void RedisServer::take(Command command) {
  commands_.push_back(std::move(command));
  if (commands_.size() == 1) work();
}

void RedisServer::work() {
  later(scene_.random.between(0, 2), [this] {
    commands_.front()(SIZE_MAX);
    commands_.pop_front();
    if (!commands_.empty()) work();
  });
}

void RedisServer::died() {
  scene_.audit.trace([] { return "redis is dead"; });
  if (!commands_.empty()) commands_.front()(static_cast<size_t>(scene_.random.below(8)));
  commands_.clear();
  if (scene_.mutant == Mutant::kLosesLastSecond) model_ = second_ago_;
  drop_connections();
}

void RedisServer::acquire(bool take_over, TimeMs ttl_ms,
                          std::function<void(RedisModel::Acquired)> reply) {
  take([=, this](size_t limit) {
    if (limit < 1) return;
    const auto acquired = model_.acquire(take_over, ttl_ms, clock());
    scene_.audit.acquired(acquired.fence);
    if (limit == SIZE_MAX) reply(acquired);
  });
}

void RedisServer::load(int64_t fence,
                       std::function<void(bool held, std::vector<SearchRecord>)> reply) {
  take([=, this](size_t limit) {
    if (limit == SIZE_MAX) reply(model_.holds(fence), model_.load());
  });
}

void RedisServer::run_pipeline(std::shared_ptr<const Pipeline> pipeline,
                               std::function<void(PipelineReply)> reply) {
  take([=, this](size_t limit) {
    PipelineReply answer;
    const bool whole = apply(*pipeline, std::min(limit, pipeline->cut), answer);
    if (whole && limit == SIZE_MAX) reply(std::move(answer));
  });
}

// False: not all of it.
bool RedisServer::apply(const Pipeline& pipeline, size_t limit, PipelineReply& reply) {
  reply.fenced = !model_.admits(pipeline.fence, pipeline.connection);
  const bool is_late = model_.holds(pipeline.fence);
  if (scene_.mutant == Mutant::kTakesStaleFences && !is_late) reply.fenced = false;
  if (scene_.mutant == Mutant::kTakesLatePipelines && is_late) reply.fenced = false;
  if (reply.fenced) {
    scene_.audit.refused_stale();
    return true;
  }
  if (pipeline.renew_ms >= 0 && limit > 0) model_.renew(pipeline.renew_ms, clock());
  const size_t count = std::min(limit, pipeline.ops.size());
  for (size_t i = 0; i < count; ++i) apply_one(pipeline.fence, pipeline.ops[i], reply);
  return count == pipeline.ops.size();
}

void RedisServer::apply_one(int64_t fence, const StoreOp& op, PipelineReply& reply) {
  const auto* result = std::get_if<PutResult>(&op.change);
  const std::string* stored = result ? model_.result(result->search, result->unit) : nullptr;
  const std::optional<std::string> before = stored ? std::optional(*stored) : std::nullopt;
  StoreDone done = model_.apply(op);
  scene_.audit.applied(fence, op, done);
  if (result != nullptr) misbehave(*result, before ? &*before : nullptr);
  reply.done.push_back(std::move(done));
}

void RedisServer::misbehave(const PutResult& change, const std::string* before) {
  if (scene_.mutant == Mutant::kForgetsResults && scene_.random.one_in(20)) {
    model_.overwrite(change.search, change.unit, nullptr);
  } else if (scene_.mutant == Mutant::kAddsDuplicates && before != nullptr) {
    UnitResult sum = *unpack_unit_result(change.unit, *before);
    for (double& value : sum.sums) value *= 2;
    const std::string packed = pack(sum);
    model_.overwrite(change.search, change.unit, &packed);
  }
}

void RedisServer::keep_old_copy() {
  second_ago_ = model_;
  later(1'000, [this] { keep_old_copy(); });
}

}  // namespace bitalloc::sim
