#include "tests/sim/texts.h"

namespace bitalloc::sim {

std::string lease_text(const std::string& search, const UnitId& unit, Fence fence) {
  return fmt::format("{} of '{}' under {}", unit_name(unit), search, fence.value);
}

namespace {

struct EventText {
  std::string operator()(const event::WorkerHello& e) const { return "hello of " + e.worker.value; }
  std::string operator()(const event::WorkerReady& e) const {
    return fmt::format("{} has {} credits", e.worker.value, e.credits);
  }
  std::string operator()(const event::WorkerResult& e) const {
    return fmt::format("result of {} from {}", lease_text(e.search, e.result.unit, e.fence),
                       e.worker.value);
  }
  std::string operator()(const event::WorkerFail& e) const {
    return fmt::format("failure of {} on {}: {}", lease_text(e.search, e.unit, e.fence),
                       e.worker.value, e.error.message);
  }
  std::string operator()(const event::WorkerGiveBack& e) const {
    return fmt::format("{} gives back {}", e.worker.value, lease_text(e.search, e.unit, e.fence));
  }
  std::string operator()(const event::WorkerBye& e) const { return "bye of " + e.worker.value; }
  std::string operator()(const StoreLost& e) const { return "redis is lost: " + e.reason; }
  std::string operator()(const StoreBack&) const { return "redis is back"; }
  std::string operator()(const event::Stop&) const { return "stop"; }
  std::string operator()(const event::SearchLoaded& e) const {
    return fmt::format("loads '{}', {}, {} results, {} leases", e.record.id,
                       search_state_name(e.record.status.state), e.record.results.size(),
                       e.record.leases.size());
  }
  std::string operator()(const event::Submit& e) const { return "submit of " + e.record.id; }
  std::string operator()(const event::Delete& e) const { return "delete of " + e.search; }
  std::string operator()(const event::Change& e) const {
    return fmt::format("change {} of {}", static_cast<int>(e.kind), e.search);
  }
  template <typename Other>
  std::string operator()(const Other&) const {
    return "";
  }
};

struct ActionText {
  std::string operator()(const action::Persist& a) const {
    if (const auto* put = std::get_if<PutLease>(&a.op.change)) {
      return fmt::format("stores the lease of {} to {}",
                         lease_text(put->search, put->unit, put->lease.fence),
                         put->lease.worker.value);
    }
    if (const auto* put = std::get_if<PutStatus>(&a.op.change)) {
      return fmt::format("stores that '{}' is {} at priority {}", put->search,
                         search_state_name(put->status.state), put->status.priority);
    }
    return "";
  }
  std::string operator()(const action::SendUnit& a) const {
    return fmt::format("{} gets {}", a.worker.value, lease_text(a.search, a.unit, a.fence));
  }
  std::string operator()(const action::SendAck& a) const {
    return fmt::format("ack of {} to {}", lease_text(a.search, a.unit, a.fence), a.worker.value);
  }
  std::string operator()(const action::SendRevoke& a) const {
    return fmt::format("revoke of {} to {}", lease_text(a.search, a.unit, a.fence), a.worker.value);
  }
  std::string operator()(const action::Log& a) const { return "log: " + a.text; }
  std::string operator()(const action::ReplyStatus& a) const { return "answers about " + a.search; }
  std::string operator()(const action::ReplyError& a) const {
    return "refuses: " + a.error.message;
  }
  template <typename Other>
  std::string operator()(const Other&) const {
    return "";
  }
};

}  // namespace

std::string text_of(const Event& event) { return std::visit(EventText(), event); }
std::string text_of(const Action& action) { return std::visit(ActionText(), action); }

}  // namespace bitalloc::sim
