// The units of one search that nobody has and that never failed, by batch, and how many workers are
// on each batch. Every call takes a time that does not grow with the number of units.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/plan.h"
#include "coordinator/index_set.h"

namespace bitalloc {

class OpenUnits {
 public:
  explicit OpenUnits(const PlanLayout& layout);

  void insert(size_t slot);
  void erase(size_t slot);
  bool empty() const { return slots_.empty(); }
  size_t count() const { return slots_.count(); }

  // A worker comes to the batch or leaves it (PlanLayout's numbers).
  void join(size_t batch);
  void leave(size_t batch);

  // The first open unit of the batch.
  std::optional<size_t> first_of(size_t batch) const;
  // The first open unit of the first batch that nobody is on; when there is none, of the batch with
  // most open units for each worker on it, a newcomer included.
  std::optional<size_t> best() const;

 private:
  struct Batch {
    uint32_t open = 0;
    uint32_t workers = 0;
  };
  using Share = std::pair<double, size_t>;  // −units for each worker, batch

  Share share(size_t batch) const;
  template <typename Change>
  void change(size_t batch, const Change& change);

  PlanLayout layout_;
  IndexSet slots_;
  std::vector<Batch> batches_;
  IndexSet quiet_;          // batches with open units and no worker
  std::set<Share> shared_;  // batches with open units and workers
};

}  // namespace bitalloc
