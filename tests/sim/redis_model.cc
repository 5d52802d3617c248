#include "tests/sim/redis_model.h"

#include <algorithm>

namespace bitalloc::sim {

using Outcome = StoreDone::Outcome;

RedisModel::Acquired RedisModel::acquire(bool take_over, TimeMs ttl_ms, TimeMs now) {
  const bool is_fresh = expires_ > now && expires_ <= now + ttl_ms;  // not: the clock went back
  if (is_fresh && !take_over) return {0, expires_ - now};
  ++fence_;
  connection_ = 0;
  renew(ttl_ms, now);
  return {fence_, 0};
}

bool RedisModel::admits(int64_t fence, int64_t connection) {
  if (!holds(fence) || connection < connection_) return false;
  connection_ = connection;
  return true;
}

StoreDone RedisModel::apply(const StoreOp& op) {
  StoreDone done{op.token, Outcome::kNew, ""};
  done.outcome = std::visit([this](const auto& change) { return on(change); }, op.change);
  if (done.outcome == Outcome::kConflict) {
    const auto& change = std::get<PutResult>(op.change);
    done.stored = *result(change.search, change.unit);
  }
  return done;
}

Outcome RedisModel::on(const PutSearch& change) {
  const SearchRecord& wanted = change.record;
  SearchRecord& record = searches_[wanted.id];
  if (record.fingerprint.sha256 != wanted.fingerprint.sha256) {
    record = SearchRecord{};
    results_.erase(wanted.id);
  }
  record.id = wanted.id;
  record.spec = wanted.spec;
  record.fingerprint = wanted.fingerprint;
  record.created_unix = wanted.created_unix;
  record.status = wanted.status;
  record.has_tokens |= change.tokens != nullptr;
  for (const UnitResult& result : wanted.results) {
    results_[wanted.id].try_emplace(result.unit, pack(result));
  }
  return Outcome::kNew;
}

Outcome RedisModel::on(const PutStatus& change) {
  const auto found = searches_.find(change.search);
  if (found != searches_.end()) found->second.status = change.status;
  return Outcome::kNew;
}

Outcome RedisModel::on(const PutLease& change) {
  const auto found = searches_.find(change.search);
  if (found == searches_.end()) return Outcome::kNew;
  found->second.fence = std::max(found->second.fence, change.lease.fence);
  found->second.leases[change.unit] = change.lease;
  return Outcome::kNew;
}

Outcome RedisModel::on(const DropLease& change) {
  const auto found = searches_.find(change.search);
  if (found == searches_.end()) return Outcome::kNew;
  auto& leases = found->second.leases;
  const auto lease = leases.find(change.unit);
  if (lease != leases.end() && lease->second.fence <= change.fence) leases.erase(lease);
  return Outcome::kNew;
}

Outcome RedisModel::on(const PutResult& change) {
  const auto found = searches_.find(change.search);
  if (found == searches_.end()) return Outcome::kNew;
  found->second.leases.erase(change.unit);
  const auto [entry, is_new] = results_[change.search].try_emplace(change.unit, change.packed);
  if (is_new) return Outcome::kNew;
  return entry->second == change.packed ? Outcome::kDuplicate : Outcome::kConflict;
}

Outcome RedisModel::on(const DeleteSearch& change) {
  searches_.erase(change.search);
  results_.erase(change.search);
  return Outcome::kNew;
}

Outcome RedisModel::on(const PutFailure& change) {
  const auto found = searches_.find(change.search);
  if (found != searches_.end()) found->second.failures[change.unit] = change.failure;
  return Outcome::kNew;
}

Outcome RedisModel::on(const ClearFailures& change) {
  const auto found = searches_.find(change.search);
  if (found != searches_.end()) found->second.failures.clear();
  return Outcome::kNew;
}

const SearchRecord* RedisModel::find(const std::string& search) const {
  const auto found = searches_.find(search);
  return found == searches_.end() ? nullptr : &found->second;
}

const std::string* RedisModel::result(const std::string& search, const UnitId& unit) const {
  const auto results = results_.find(search);
  if (results == results_.end()) return nullptr;
  const auto found = results->second.find(unit);
  return found == results->second.end() ? nullptr : &found->second;
}

std::vector<SearchRecord> RedisModel::load() const {
  std::vector<SearchRecord> records;
  for (const auto& [id, stored] : searches_) {
    SearchRecord record = stored;
    const auto results = results_.find(id);
    if (results != results_.end()) {
      for (const auto& [unit, packed] : results->second) {
        record.results.push_back(*unpack_unit_result(unit, packed));
      }
    }
    records.push_back(std::move(record));
  }
  return records;
}

void RedisModel::overwrite(const std::string& search, const UnitId& unit,
                           const std::string* packed) {
  if (packed == nullptr) {
    results_[search].erase(unit);
  } else {
    results_[search][unit] = *packed;
  }
}

}  // namespace bitalloc::sim
