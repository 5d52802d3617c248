// What a client asks of a coordinator, and what it is told.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "coordinator/queue.h"

namespace bitalloc::sim {

struct ClientRequest {
  enum class Kind { kSubmit, kPause, kResume, kCancel, kReprioritize, kDelete, kStatus };
  Kind kind = Kind::kStatus;
  std::string search;
  std::shared_ptr<const SearchSpec> spec;  // kSubmit
  int64_t priority = 0;
};

inline const char* kind_name(ClientRequest::Kind kind) {
  constexpr const char* kNames[] = {"submit",       "pause",  "resume", "cancel",
                                    "reprioritize", "delete", "status"};
  return kNames[static_cast<int>(kind)];
}

struct ClientReply {
  std::optional<Error> error;
  SearchState state = SearchState::kQueued;
  bool current = false;  // of the coordinator that holds the lock at this moment
};

using Answer = std::function<void(ClientReply)>;

}  // namespace bitalloc::sim
