#include "coordinator/store.h"

#include <array>
#include <utility>

namespace bitalloc {
namespace {

constexpr std::array<std::pair<SearchState, const char*>, 6> kStates = {{
    {SearchState::kQueued, "queued"},
    {SearchState::kRunning, "running"},
    {SearchState::kPaused, "paused"},
    {SearchState::kDone, "done"},
    {SearchState::kFailed, "failed"},
    {SearchState::kCancelled, "cancelled"},
}};

}  // namespace

const char* search_state_name(SearchState state) {
  for (const auto& [value, name] : kStates) {
    if (value == state) return name;
  }
  BA_CHECK(false, "search state without a name");
}

Result<SearchState> parse_search_state(const std::string& name) {
  for (const auto& [value, text] : kStates) {
    if (name == text) return value;
  }
  return invalid_argument(fmt::format("'{}' is not the state of a search", name), "state");
}

bool has_ended(SearchState state) {
  return state == SearchState::kDone || state == SearchState::kFailed ||
         state == SearchState::kCancelled;
}

Json to_json(const SearchStatus& status) {
  return {{"state", search_state_name(status.state)},
          {"priority", status.priority},
          {"share", status.share},
          {"error", status.error ? error_to_json(*status.error) : Json()}};
}

Result<SearchStatus> search_status_from_json(const Json& json) {
  SearchStatus status;
  BA_ASSIGN_OR_RETURN(const auto state, json_field<std::string>(json, "state", "state"));
  BA_ASSIGN_OR_RETURN(status.state, parse_search_state(state));
  BA_ASSIGN_OR_RETURN(status.priority, json_field<int64_t>(json, "priority", "state"));
  BA_ASSIGN_OR_RETURN(status.share, json_field_or<double>(json, "share", "state", 1.0));
  BA_ASSIGN_OR_RETURN(const Json error, json_field_or<Json>(json, "error", "state", Json()));
  if (error.is_object()) status.error = error_from_json(error);
  return status;
}

Json to_json(const UnitFailure& failure) {
  return {{"attempts", failure.attempts},
          {"losses", failure.losses},
          {"worker", failure.worker.value},
          {"error", error_to_json(failure.error)}};
}

Result<UnitFailure> unit_failure_from_json(const Json& json) {
  UnitFailure failure;
  BA_ASSIGN_OR_RETURN(failure.attempts, json_field<int>(json, "attempts", "failure"));
  BA_ASSIGN_OR_RETURN(failure.losses, json_field<int>(json, "losses", "failure"));
  BA_ASSIGN_OR_RETURN(failure.worker.value, json_field<std::string>(json, "worker", "failure"));
  BA_ASSIGN_OR_RETURN(const Json error, json_field<Json>(json, "error", "failure"));
  failure.error = error_from_json(error);
  return failure;
}

}  // namespace bitalloc
