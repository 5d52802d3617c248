// The network between the parts: messages are lost, doubled, late and overtaken, and a way from one
// node to another can be cut for a while without the way back.
#pragma once

#include <map>
#include <utility>

#include "common/random.h"
#include "tests/sim/timeline.h"

namespace bitalloc::sim {

using Node = int;

struct NetworkFaults {  // of messages, one in n; 0: never
  int64_t drop = 0;
  int64_t duplicate = 0;
  int64_t slow = 0;
};

class Network {
 public:
  Network(Timeline& timeline, Random& random, const NetworkFaults& faults)
      : timeline_(timeline), random_(random), faults_(faults) {}

  // Workers and coordinators: anything can happen to a message.
  void send(Node from, Node to, const Step& arrive) {
    if (lost(from, to)) return;
    timeline_.after(delay(), arrive);
    if (random_.one_in(faults_.duplicate)) timeline_.after(delay(), arrive);
  }

  // Clients: a message may be lost or late, but none overtakes another between the same two.
  void send_in_order(Node from, Node to, const Step& arrive) {
    if (lost(from, to)) return;
    TimeMs& last = last_arrival_[{from, to}];
    last = std::max(last, timeline_.now() + delay());
    timeline_.after(last - timeline_.now(), arrive);
  }

  // Nothing that `from` says reaches `to` for so long. kEverybody stands for all nodes.
  static constexpr Node kEverybody = -1;
  void cut(Node from, Node to, TimeMs ms) {
    TimeMs& until = cut_until_[{from, to}];
    until = std::max(until, timeline_.now() + ms);
  }
  void mend() { cut_until_.clear(); }

 private:
  bool lost(Node from, Node to) {
    return is_cut(from, to) || is_cut(from, kEverybody) || is_cut(kEverybody, to) ||
           random_.one_in(faults_.drop);
  }
  bool is_cut(Node from, Node to) const {
    const auto found = cut_until_.find({from, to});
    return found != cut_until_.end() && found->second > timeline_.now();
  }
  TimeMs delay() {
    const bool slow = random_.one_in(faults_.slow);
    return slow ? random_.between(100, 9'000) : random_.between(0, 5);
  }

  Timeline& timeline_;
  Random& random_;
  const NetworkFaults& faults_;
  std::map<std::pair<Node, Node>, TimeMs> cut_until_;
  std::map<std::pair<Node, Node>, TimeMs> last_arrival_;
};

}  // namespace bitalloc::sim
