#include "tests/sim/sim_clients.h"

#include "tests/sim/sim_coordinator.h"

namespace bitalloc::sim {
namespace {

using Kind = ClientRequest::Kind;

constexpr TimeMs kAskAgainMs = 3'000;
constexpr TimeMs kLookMs = 4'000;

}  // namespace

SimClients::SimClients(Scene& scene, Node node, std::vector<Script> scripts,
                       SimCoordinator* const& endpoint)
    : Process(scene, node, "client"), endpoint_(endpoint) {
  for (Script& script : scripts) {
    searches_.push_back(std::make_unique<Watched>());
    searches_.back()->script = std::move(script);
  }
}

void SimClients::boot() {
  for (auto& search : searches_) next(*search);
}

void SimClients::next(Watched& search) {
  const bool idle = search.script.orders.empty();
  if (idle) search.script.orders.push_back({Kind::kStatus, kLookMs, 0, nullptr});
  const uint64_t order = ++search.order;
  search.asked = false;
  later(search.script.orders.front().wait_ms, [this, &search, order] { ask(search, order); });
}

void SimClients::ask(Watched& search, uint64_t order) {
  if (order != search.order) return;
  const Order& wanted = search.script.orders.front();
  if (!search.asked && wanted.kind != Kind::kStatus) {
    scene_.audit.stopped_by_request(search.script.search, false);
    scene_.audit.priorities.erase(search.script.search);
    if (wanted.kind == Kind::kSubmit) search.spec = wanted.spec;
    search.asked = true;
  }
  later(kAskAgainMs, [this, &search, order] { ask(search, order); });
  if (endpoint_ == nullptr) return;
  ClientRequest request{wanted.kind, search.script.search, search.spec, wanted.priority};
  SimCoordinator* to = endpoint_;
  const Answer answer = [this, to, &search, order](const ClientReply& reply) {
    scene_.network.send_in_order(to->node(), node(), [=, this, &search] {
      run([=, this, &search] { answered(search, order, reply); });
    });
  };
  scene_.network.send_in_order(node(), to->node(),
                               [=] { to->run([=] { to->from_client(request, answer); }); });
}

// Whether the order need not be given again: done, or there is no point. A coordinator that has
// been taken over may refuse with an old state in mind, so its refusals do not count.
bool SimClients::settled(const Order& order, const ClientReply& reply) const {
  if (!reply.error) return true;
  if (!reply.current) return false;
  const ErrorCode code = reply.error->code;
  if (order.kind == Kind::kSubmit) return false;
  return code == ErrorCode::kNotFound || code == ErrorCode::kInvalidArgument;
}

void SimClients::answered(Watched& search, uint64_t order, const ClientReply& reply) {
  if (order != search.order) return;
  const Order given = search.script.orders.front();
  if (!settled(given, reply)) {
    if (reply.error->code == ErrorCode::kMismatch && reply.current) {
      scene_.audit.violated("a search can be submitted again", reply.error->message);
    }
    return;  // asked again in a moment
  }
  search.script.orders.pop_front();
  note(search, given, reply);
  next(search);
}

void SimClients::note(Watched& search, const Order& order, const ClientReply& reply) {
  Audit& audit = scene_.audit;
  const std::string& id = search.script.search;
  if (order.kind == Kind::kStatus) return look_after(search, reply);
  audit.trace([&] {
    return fmt::format("client: {} of '{}' {}", kind_name(order.kind), id,
                       reply.error ? "refused: " + reply.error->message : "answered");
  });
  search.refused = reply.error.has_value();
  if (order.kind == Kind::kDelete) search.acknowledged = false;
  if (reply.error) return;
  if (order.kind == Kind::kSubmit) {
    if (!search.acknowledged) search.priority = order.priority;
    search.acknowledged = true;
  } else if (order.kind == Kind::kReprioritize) {
    search.priority = order.priority;
  } else if (order.kind == Kind::kPause || order.kind == Kind::kCancel) {
    audit.stopped_by_request(id, true);
  }
  if (search.acknowledged) audit.priorities[id] = search.priority;
}

void SimClients::look_after(Watched& search, const ClientReply& reply) {
  if (!reply.current) return;
  const bool missing = reply.error.has_value();
  if (missing && search.acknowledged) {
    scene_.audit.violated("an acknowledged submission stays", search.script.search);
  }
  if (search.script.goal != Script::Goal::kDone) return;
  if (missing || reply.state == SearchState::kFailed || reply.state == SearchState::kCancelled) {
    search.script.orders.push_back({Kind::kSubmit, 0, search.priority, search.spec});
  } else if (reply.state == SearchState::kPaused) {
    search.script.orders.push_back({Kind::kResume, 0, 0, nullptr});
  }
}

}  // namespace bitalloc::sim
