// The clients of a simulated world: each search has a script of orders, given one after the other,
// each repeated until it is answered. Afterwards somebody looks after the searches that are meant
// to be finished: submits what has failed or was cancelled, resumes what is paused.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/client_request.h"
#include "tests/sim/process.h"

namespace bitalloc::sim {

class SimCoordinator;

struct Order {
  ClientRequest::Kind kind;
  TimeMs wait_ms = 0;  // before it is given
  int64_t priority = 0;
  std::shared_ptr<const SearchSpec> spec;  // kSubmit: from now on the search is this one
};

struct Script {
  enum class Goal { kDone, kPaused, kCancelled, kDeleted };
  std::string search;
  std::deque<Order> orders;
  Goal goal = Goal::kDone;
};

class SimClients : public Process {
 public:
  SimClients(Scene& scene, Node node, std::vector<Script> scripts, SimCoordinator* const& endpoint);
  void boot();

  struct Watched {
    Script script;
    std::shared_ptr<const SearchSpec> spec;  // submitted last
    int64_t priority = 0;
    bool acknowledged = false;  // the submission
    bool refused = false;       // the last order, for good: the search had ended
    uint64_t order = 0;         // which one is open
    bool asked = false;
  };
  const std::vector<std::unique_ptr<Watched>>& searches() const { return searches_; }

 private:
  void next(Watched& search);
  void ask(Watched& search, uint64_t order);
  void answered(Watched& search, uint64_t order, const ClientReply& reply);
  void look_after(Watched& search, const ClientReply& reply);
  bool settled(const Order& order, const ClientReply& reply) const;
  void note(Watched& search, const Order& order, const ClientReply& reply);

  SimCoordinator* const& endpoint_;
  std::vector<std::unique_ptr<Watched>> searches_;
};

}  // namespace bitalloc::sim
