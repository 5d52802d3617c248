#include "coordinator/report.h"

#include <algorithm>
#include <cmath>

#include "coordinator/schedule.h"

namespace bitalloc {
namespace {

constexpr size_t kMaxFailedUnits = 20;  // that a status lists; `units.failed` counts all

Json failed_units_json(const Search& search) {
  Json rows = Json::array();
  for (const size_t slot : search.set_aside) {
    if (rows.size() == kMaxFailedUnits) break;
    const UnitFailure& failure = search.troubles.at(slot).failure;
    rows.push_back({{"unit", unit_name(search.unit(slot))},
                    {"attempts", failure.attempts},
                    {"losses", failure.losses},
                    {"worker", failure.worker.value},
                    {"error", error_to_json(failure.error)}});
  }
  return rows;
}

}  // namespace

Json eta_json(const Queue& queue, const Search& search) {
  int64_t workers = 0;
  for (const auto& [epoch, units] : queue.held()) {
    workers += std::any_of(units.begin(), units.end(),
                           [&](const auto& key) { return key.first == search.id; });
  }
  if (search.status.state != SearchState::kRunning || search.timing.count == 0 || workers == 0) {
    return nullptr;
  }
  const double seconds = search.weight_left * search.timing.seconds / search.timing.weight /
                         static_cast<double>(workers);
  const double spread =
      std::min(0.5, 0.1 + 0.5 / std::sqrt(static_cast<double>(search.timing.count)));
  return Json::array({seconds * (1 - spread), seconds * (1 + spread)});
}

Json status_json(const Queue& queue, const Search& search, TimeMs now) {
  const int64_t total = search.table.units_total();
  const int64_t done = search.table.units_done();
  const std::string reason = why_pending(queue, search, now);
  return {{"id", search.id},
          {"kind", search.spec.kind == JobKind::kSearch ? "search" : "validation"},
          {"state", search_state_name(search.status.state)},
          {"units",
           {{"total", total},
            {"done", done},
            {"leased", search.leased},
            {"failed", search.set_aside.size()},
            {"retrying", search.resting.size() + search.retries.count()},
            {"speculated", search.speculated}}},
          {"progress", static_cast<double>(done) / static_cast<double>(total)},
          {"eta_seconds", eta_json(queue, search)},
          {"error", search.status.error ? error_to_json(*search.status.error) : Json()},
          {"failed_units", failed_units_json(search)},
          {"fingerprint", search.fingerprint.sha256},
          {"priority", search.status.priority},
          {"share", search.status.share},
          {"model", search.spec.model.name},
          {"recipe", search.spec.recipe},
          {"effective_bits", search.spec.effective_bits},
          {"memory", search.spec.memory ? to_json(*search.spec.memory) : Json()},
          {"created_unix", search.created_unix},
          {"conflicts", search.conflicts},
          {"why_pending", reason.empty() ? Json() : Json(reason)}};
}

Json workers_json(const Queue& queue, TimeMs now) {
  Json rows = Json::array();
  for (const auto& [epoch, worker] : queue.workers()) {
    Json row = worker.info.is_object() ? worker.info : Json::object();
    Json holding = Json::array();
    const auto held = queue.held().find(epoch);
    if (held != queue.held().end()) {
      for (const auto& [search, unit] : held->second) {
        holding.push_back({{"search", search}, {"unit", unit_name(unit)}});
      }
    }
    row["epoch"] = epoch.value;
    row["state"] = holding.empty() ? "idle" : "busy";
    row["units"] = holding.size();
    row["units_done"] = worker.units_done;
    row["models"] = worker.models;
    row["model_switches"] = worker.model_switches;
    row["credits"] = worker.credits;
    row["heard_ms_ago"] = now - worker.heard;
    row["holding"] = std::move(holding);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace bitalloc
