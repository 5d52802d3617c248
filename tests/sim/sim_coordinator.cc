#include "tests/sim/sim_coordinator.h"

#include <algorithm>

#include "tests/sim/sim_worker.h"
#include "tests/sim/texts.h"

namespace bitalloc::sim {
namespace {

constexpr size_t kAdmission = 8'192;  // changes that must fit into the store for a result
constexpr TimeMs kFlushMs = 1'500;

std::string line(const std::string& name, const char* arrow, const std::string& text) {
  return text.empty() ? text : name + arrow + text;
}

}  // namespace

SimCoordinator::SimCoordinator(Scene& scene, Node node, RedisServer& redis, const Specs& specs,
                               CoordinatorOptions options)
    : Process(scene, node, fmt::format("c{}", node)),
      redis_(redis),
      specs_(specs),
      options_(options),
      saboteur_(scene.mutant, scene.random),
      link_(*this, scene, redis, [this](const StoreEvent& event) { on_store(event); }) {}

// ---- life ---------------------------------------------------------------------------------------

void SimCoordinator::boot(Step listening) {
  link_.open(options_.take_over, [this, listening](auto records) {
    if (!records) return kill();
    begin(std::move(*records), listening);
  });
}

void SimCoordinator::begin(std::vector<SearchRecord> records, const Step& listening) {
  queue_ = std::make_unique<Queue>(options_.queue);
  for (SearchRecord& record : records) {
    if (!alive()) return;
    granted_fences_[record.id] = record.fence.value;
    if (record.has_tokens && !has_ended(record.status.state)) tokens_.insert(record.id);
    handle(event::SearchLoaded{std::move(record)});
  }
  if (!alive()) return;
  listening_ = true;
  scene_.audit.trace([&] { return fmt::format("{} serves", name()); });
  listening();
  tick();
}

void SimCoordinator::tick() {
  handle(event::Tick{});
  if (alive()) later(options_.tick_ms, [this] { tick(); });
}

void SimCoordinator::stop() {
  if (!listening_ || stopping_) return;
  handle(event::Stop{});
  stopping_ = true;
  link_.close([this] { later(1, [this] { kill(); }); });
  later(kFlushMs, [this] { kill(); });
}

void SimCoordinator::doom(int64_t actions, bool kill_then) {
  doom_after_ = actions;
  doom_kills_ = kill_then;
}

void SimCoordinator::died() {
  scene_.audit.trace([&] { return fmt::format("{} is dead", name()); });
  link_.die();
  outbox_.clear();
  queue_.reset();
}

void SimCoordinator::on_store(const StoreEvent& event) {
  if (queue_ == nullptr) return;
  if (std::holds_alternative<StoreFenced>(event)) return kill();
  if (const auto* done = std::get_if<StoreDone>(&event)) return handle(*done);
  if (const auto* lost = std::get_if<StoreLost>(&event)) return handle(*lost);
  handle(StoreBack{});
}

void SimCoordinator::handle(Event event) {
  if (stopping_ || !saboteur_.passes(event)) return;
  scene_.audit.trace([&] { return line(name(), " <- ", text_of(event)); });
  Actions actions = queue_->handle(event, clock());
  saboteur_.spoil(event, actions);
  for (const Action& action : actions) {
    std::visit([this](const auto& a) { inspect(a); }, action);
  }
  check_bounds();
  for (Action& action : actions) outbox_.push_back(std::move(action));
  perform_all();
}

void SimCoordinator::perform_all() {
  while (!outbox_.empty() && alive() && !frozen()) {
    if (doom_after_ == 0) {
      doom_after_ = -1;
      if (doom_kills_) return kill();
      return freeze();
    }
    if (doom_after_ > 0) --doom_after_;
    Action action = std::move(outbox_.front());
    outbox_.pop_front();
    scene_.audit.trace([&] { return line(name(), " -> ", text_of(action)); });
    std::visit([this](auto& a) { perform(a); }, action);
  }
}

// ---- workers ------------------------------------------------------------------------------------

void SimCoordinator::on_result(const event::WorkerResult& result, const std::string& computed_for) {
  if (!link_.has_room(kAdmission)) return;
  const Search* search = queue_->find(result.search);
  const bool of_another =
      search != nullptr && !computed_for.empty() && computed_for != search->fingerprint.sha256;
  if (!of_another) return handle(result);
  send(result.worker, Revoke{result.search, result.result.unit, result.fence});
}

void SimCoordinator::from_worker(const Event& event, const std::string& computed_for,
                                 SimWorker& worker, int64_t socket) {
  if (!listening_ || stopping_) return;
  const WorkerEpoch& epoch = worker.epoch();
  peers_[epoch] = {&worker, socket};
  const bool known = queue_->workers().contains(epoch);
  if (std::holds_alternative<event::WorkerHello>(event)) {
    handle(event);
    if (alive() && queue_->workers().contains(epoch)) send(epoch, Welcome{});
  } else if (const auto* result = std::get_if<event::WorkerResult>(&event)) {
    on_result(*result, computed_for);
  } else if (std::holds_alternative<event::WorkerFail>(event)) {
    send(epoch, Pulse{});
    handle(event);
  } else if (std::holds_alternative<event::WorkerGiveBack>(event)) {
    handle(event);
  } else if (std::holds_alternative<event::WorkerBye>(event)) {
    handle(event);
    peers_.erase(epoch);
  } else if (!known) {
    send(epoch, Unknown{});
  } else {
    if (std::holds_alternative<event::WorkerHeartbeat>(event)) send(epoch, Pulse{});
    handle(event);
  }
}

void SimCoordinator::send(const WorkerEpoch& epoch, const WorkerMessage& message) {
  const auto peer = peers_.find(epoch);
  if (peer == peers_.end()) return;
  SimWorker* worker = peer->second.worker;
  scene_.network.send(node(), worker->node(), [=, socket = peer->second.socket] {
    worker->run([=] { worker->receive(socket, message); });
  });
}

void SimCoordinator::perform(action::Persist& action) {
  if (const auto* put = std::get_if<PutSearch>(&action.op.change); put && put->tokens) {
    tokens_.insert(put->record.id);
  }
  link_.put(std::move(action.op));
}

void SimCoordinator::perform(const action::SendUnit& action) {
  const Search* search = queue_->find(action.search);
  if (search == nullptr) return;
  if (!tokens_.contains(action.search)) {
    return scene_.audit.violated("a unit has its tokens", action.search);
  }
  UnitOrder order{
      action.search, action.unit, action.fence, specs_.at(search->fingerprint.sha256), {}};
  if (action.unit.kind == UnitKind::kScore) order.amax = search->table.amax();
  send(action.worker, order);
}

void SimCoordinator::perform(const action::SendAck& action) {
  send(action.worker, Ack{action.search, action.unit});
}

void SimCoordinator::perform(const action::SendReject& action) {
  scene_.audit.violated("a good result is taken", action.error.message);
}

void SimCoordinator::perform(const action::SendRevoke& action) {
  send(action.worker, Revoke{action.search, action.unit, action.fence});
}

void SimCoordinator::perform(const action::WriteCheckpoint& action) {
  later(scene_.random.between(0, 50),
        [this, search = action.search] { handle(event::CheckpointWritten{search}); });
}

void SimCoordinator::perform(const action::Log&) {}

// ---- clients ------------------------------------------------------------------------------------

std::optional<Event> SimCoordinator::change_event(const ClientRequest& request,
                                                  uint64_t number) const {
  using Kind = ClientRequest::Kind;
  using Change = event::Change;
  switch (request.kind) {
    case Kind::kSubmit: {
      event::Submit submit;
      submit.request = number;
      submit.record.id = request.search;
      submit.record.spec = *request.spec;
      submit.record.fingerprint = fingerprint(*request.spec);
      submit.record.status.priority = request.priority;
      submit.record.created_unix = scene_.timeline.now() / 1'000;
      submit.tokens = std::make_shared<SearchTokens>();
      return submit;
    }
    case Kind::kPause:
      return Change{number, request.search, Change::Kind::kPause, 0};
    case Kind::kResume:
      return Change{number, request.search, Change::Kind::kResume, 0};
    case Kind::kCancel:
      return Change{number, request.search, Change::Kind::kCancel, 0};
    case Kind::kReprioritize:
      return Change{number, request.search, Change::Kind::kReprioritize, request.priority};
    case Kind::kDelete:
      return event::Delete{number, request.search};
    case Kind::kStatus:
      return std::nullopt;
  }
  return std::nullopt;
}

void SimCoordinator::from_client(const ClientRequest& request, Answer answer_to) {
  if (!listening_ || stopping_) return;
  const uint64_t number = next_request_++;
  requests_[number] = {request, std::move(answer_to)};
  const auto event = change_event(request, number);
  if (event && link_.has_room(kAdmission)) return handle(*event);
  ClientReply reply;
  const Search* search = queue_->find(request.search);
  if (event) {
    reply.error = resource_exhausted("too much to do");
  } else if (search == nullptr) {
    reply.error = not_found("there is no such search");
  }
  answer(number, std::move(reply));
}

void SimCoordinator::answer(uint64_t request, ClientReply reply) {
  auto waiting = requests_.extract(request);
  if (waiting.empty()) return;
  const Search* search = queue_->find(waiting.mapped().request.search);
  if (search != nullptr) reply.state = search->status.state;
  reply.current = holds_lock();
  waiting.mapped().answer(std::move(reply));
}

void SimCoordinator::perform(const action::ReplyStatus& action) { answer(action.request, {}); }
void SimCoordinator::perform(const action::ReplyDeleted& action) { answer(action.request, {}); }
void SimCoordinator::perform(const action::ReplyError& action) {
  answer(action.request, {action.error});
}

}  // namespace bitalloc::sim
