// Virtual time: steps in the order of their time, and of their making when the time is equal.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "coordinator/queue.h"

namespace bitalloc::sim {

using Step = std::function<void()>;

class Timeline {
 public:
  TimeMs now() const { return now_; }
  uint64_t steps() const { return steps_; }

  void after(TimeMs delay_ms, Step step) {
    planned_.push({now_ + delay_ms, next_++, std::move(step)});
  }

  // Goes to the next step and takes it. False: nothing is planned.
  bool advance() {
    if (planned_.empty()) return false;
    Step step = std::move(const_cast<Planned&>(planned_.top()).step);  // popped at once
    now_ = planned_.top().time;
    planned_.pop();
    ++steps_;
    step();
    return true;
  }

 private:
  struct Planned {
    TimeMs time;
    uint64_t order;
    Step step;
    bool operator<(const Planned& other) const {  // the earliest on top
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  TimeMs now_ = 0;
  uint64_t next_ = 0;
  uint64_t steps_ = 0;
  std::priority_queue<Planned> planned_;
};

}  // namespace bitalloc::sim
