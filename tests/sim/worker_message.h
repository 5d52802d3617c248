// What a coordinator says to a worker.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/queue.h"

namespace bitalloc::sim {

struct Welcome {};  // `ok` to a hello
struct Unknown {};  // error not_found: say hello again
struct Pulse {};    // heartbeat, or `ok` to a failure
struct UnitOrder {
  std::string search;
  UnitId unit;
  Fence fence;
  std::shared_ptr<const SearchSpec> spec;
  std::vector<float> amax;  // kScore
};
struct Ack {
  std::string search;
  UnitId unit;
};
struct Revoke {
  std::string search;
  UnitId unit;
  Fence fence;
};
struct Drain {};

using WorkerMessage = std::variant<Welcome, Unknown, Pulse, UnitOrder, Ack, Revoke, Drain>;

}  // namespace bitalloc::sim
