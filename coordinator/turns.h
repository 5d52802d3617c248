// Whose turn it is: strict priority between levels, fair shares within one.
//
// Each search has a counter of the worker-seconds it was given, divided by its share. The search
// with the smallest counter of the highest level is served first; ties go by age. A search that
// comes (or comes back) to its level starts at the level's clock, the counter of the search that
// was served last, so that it is not owed for the time it was away; and what it was given long ago
// counts for at most kRememberedSeconds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>

namespace bitalloc {

struct Search;

struct Turn {
  Search* search = nullptr;  // its owner
  uint64_t number = 0;       // order of arrival
  int64_t created_unix = 0;
  int64_t priority = 0;
  double share = 1;           // of its level, relative to others
  double served_seconds = 0;  // divided by the share
  bool waiting = false;       // has units to give out: it is in a level
};

class Turns {
 public:
  static constexpr double kRememberedSeconds = 60;

  struct Earlier {
    bool operator()(const Turn* a, const Turn* b) const;
  };
  struct Level {
    double clock = 0;
    std::set<Turn*, Earlier> turns;
  };
  using Levels = std::map<int64_t, Level, std::greater<>>;  // by priority, the highest first

  void join(Turn& turn);
  void leave(Turn& turn);
  void reprioritize(Turn& turn, int64_t priority);
  // The search was given (or, negative, given too much) work.
  void charge(Turn& turn, double seconds);

  bool empty() const { return levels_.empty(); }
  const Levels& levels() const { return levels_; }

 private:
  Levels levels_;  // none is empty
};

}  // namespace bitalloc
