#include "tests/sim/audit.h"

namespace bitalloc::sim {

void Audit::violated(std::string invariant, std::string text) {
  trace([&] { return fmt::format("VIOLATED {}: {}", invariant, text); });
  violations_.push_back(
      {timeline_.now(), timeline_.steps(), std::move(invariant), std::move(text)});
}

void Audit::add_line(const std::string& text) {
  if (text.empty()) return;
  lines_.push_back(fmt::format("{:>8} ms {:>7}  {}", timeline_.now(), timeline_.steps(), text));
}

void Audit::applied(int64_t fence, const StoreOp& op, const StoreDone& done) {
  if (fence != newest_fence_) {
    violated("no stale fence is accepted",
             fmt::format("a change under fence {} was made; {} had been given out", fence,
                         newest_fence_));
  }
  if (const auto* change = std::get_if<PutSearch>(&op.change)) {
    std::string& known = fingerprints_[change->record.id];
    if (known != change->record.fingerprint.sha256) searches_.erase(change->record.id);
    known = change->record.fingerprint.sha256;
  } else if (const auto* change = std::get_if<PutLease>(&op.change)) {
    if (!fingerprints_.contains(change->search)) return;
    searches_[change->search].leases.insert({change->unit, change->lease.fence.value});
  } else if (const auto* change = std::get_if<PutResult>(&op.change)) {
    if (!fingerprints_.contains(change->search)) return;
    auto& first = searches_[change->search].first;
    const bool is_new = first.try_emplace(change->unit, change->packed).second;
    if (is_new != (done.outcome == StoreDone::Outcome::kNew)) {
      violated("a unit counts once",
               fmt::format("the store took {} of '{}' {}", unit_name(change->unit), change->search,
                           is_new ? "for a second result; it was the first" : "twice"));
    }
    if (done.outcome == StoreDone::Outcome::kConflict) ++conflicts;
  } else if (const auto* change = std::get_if<DeleteSearch>(&op.change)) {
    searches_.erase(change->search);
    fingerprints_.erase(change->search);
  }
}

bool Audit::was_leased(const std::string& search, const UnitId& unit, Fence fence) const {
  const auto found = searches_.find(search);
  return found != searches_.end() && found->second.leases.contains({unit, fence.value});
}

const std::string* Audit::first_result(const std::string& search, const UnitId& unit) const {
  const auto found = searches_.find(search);
  if (found == searches_.end()) return nullptr;
  const auto first = found->second.first.find(unit);
  return first == found->second.first.end() ? nullptr : &first->second;
}

void Audit::stopped_by_request(const std::string& search, bool stopped) {
  if (stopped) {
    stopped_.insert(search);
  } else {
    stopped_.erase(search);
  }
}

}  // namespace bitalloc::sim
