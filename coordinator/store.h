// What survives the coordinator: the durable form of a search, the changes made to it, and the
// interface of the store that keeps them. The queue says what to persist with these types; the
// store carries it out in order and says when it is on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/fingerprint.h"
#include "common/ids.h"
#include "common/json.h"
#include "common/plan.h"
#include "common/score_table.h"
#include "common/search_spec.h"
#include "common/tokens.h"

namespace bitalloc {

enum class SearchState { kQueued, kRunning, kPaused, kDone, kFailed, kCancelled };

const char* search_state_name(SearchState state);  // "queued", …
Result<SearchState> parse_search_state(const std::string& name);
// Done, failed or cancelled: nothing will happen until somebody asks.
bool has_ended(SearchState state);

// The part of a search that changes by request or by the course of things.
struct SearchStatus {
  SearchState state = SearchState::kQueued;
  int64_t priority = 0;
  double share = 1;            // of the work of its priority level, relative to others
  std::optional<Error> error;  // why it failed
};

Json to_json(const SearchStatus& status);
Result<SearchStatus> search_status_from_json(const Json& json);

// A worker's right to a unit. Deadlines live in memory only: a restarted coordinator gives every
// stored lease a fresh one, which its worker renews or loses. The store keeps the newest lease of a
// unit; of a second one for the same unit (a straggler's) nothing else is durable, or needs to be.
struct Lease {
  WorkerEpoch worker;
  Fence fence;
};

// Why a unit was set aside: it failed or took its worker with it too often, or failed for good. The
// rest of its search goes on without it.
struct UnitFailure {
  int attempts = 0;    // failures
  int losses = 0;      // workers that vanished with it
  WorkerEpoch worker;  // the last one
  Error error;         // the last one
};

Json to_json(const UnitFailure& failure);
Result<UnitFailure> unit_failure_from_json(const Json& json);

// The sequences of a search. Shared (never written) by the front, which cuts batches out of them,
// and by the store's thread.
struct SearchTokens {
  TokenSet scored;
  TokenSet calibration;  // empty when the spec needs none
};
using SharedTokens = std::shared_ptr<const SearchTokens>;

// Everything durable about one search.
struct SearchRecord {
  std::string id;
  SearchSpec spec;
  Fingerprint fingerprint;
  int64_t created_unix = 0;
  SearchStatus status;
  Fence fence;  // the largest that was given out
  bool has_tokens = false;
  std::map<UnitId, Lease> leases;
  std::map<UnitId, UnitFailure> failures;  // units that are set aside
  std::vector<UnitResult> results;
};

// One change, atomic in the store. `token` comes back when it is durable.
struct PutSearch {  // spec, fingerprint, status; tokens when given; results of an import
  SearchRecord record;
  SharedTokens tokens;  // null: those that are there stay
};
struct PutStatus {
  std::string search;
  SearchStatus status;
};
struct PutLease {
  std::string search;
  UnitId unit;
  Lease lease;
};
struct DropLease {
  std::string search;
  UnitId unit;
  Fence fence;  // a newer lease stays
};
struct PutFailure {  // sets the unit aside; a result of the unit, once there, outweighs it
  std::string search;
  UnitId unit;
  UnitFailure failure;
};
struct ClearFailures {  // every unit of the search gets new attempts
  std::string search;
};
struct PutResult {  // first write wins; drops the unit's lease
  std::string search;
  UnitId unit;
  std::string packed;  // pack(UnitResult)
};
struct DeleteSearch {
  std::string search;
};
struct StoreOp {
  uint64_t token = 0;
  std::variant<PutSearch, PutStatus, PutLease, DropLease, PutResult, DeleteSearch, PutFailure,
               ClearFailures>
      change;
};

// What the store tells its owner.
struct StoreDone {  // the change is on disk
  enum class Outcome { kNew, kDuplicate, kConflict };
  uint64_t token = 0;
  Outcome outcome = Outcome::kNew;
  std::string stored;  // kConflict: the value that was first and stays
};
struct StoreLost {  // it keeps trying; changes wait in order
  std::string reason;
};
struct StoreBack {};
struct StoreFenced {  // another coordinator has taken over, or the store has lost acknowledged
                      // changes: nothing may be written any more
  std::string reason;
};
using StoreEvent = std::variant<StoreDone, StoreLost, StoreBack, StoreFenced>;

// A search as it was found at the start.
struct StoredSearch {
  SearchRecord record;
  SharedTokens tokens;  // null when the search has ended or was imported without
};

// Thread rule: called by one thread. The callback runs on the store's own thread.
class ResultStore {
 public:
  virtual ~ResultStore() = default;

  // Every search. Only before the first put(); blocks.
  virtual Result<std::vector<StoredSearch>> load() = 0;
  // Takes the change, or says false when its queue is full (then nothing was taken and the caller
  // must not go on as if). Changes become durable in the order they were put.
  virtual bool put(StoreOp op) = 0;
  // At least `count` more changes fit now.
  virtual bool has_room(size_t count) const = 0;
  // Waits until everything put is durable, `timeout_ms` at most; false: not all of it. The end: no
  // put() afterwards.
  virtual bool close(int timeout_ms) = 0;
};

}  // namespace bitalloc
