// The promises of the service, watched from outside: what became durable and what was said to whom.
// It knows the history of the store, not how the queue or the store came to it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/queue.h"
#include "coordinator/store.h"
#include "tests/sim/timeline.h"

namespace bitalloc::sim {

struct Violation {
  TimeMs time = 0;
  uint64_t step = 0;
  std::string invariant;
  std::string text;
};

class Audit {
 public:
  explicit Audit(const Timeline& timeline) : timeline_(timeline) {}

  void violated(std::string invariant, std::string text);
  const std::vector<Violation>& violations() const { return violations_; }
  bool ok() const { return violations_.empty(); }

  // A line of the trace; kept only when somebody will read it. `make` returns its text.
  void keep_trace() { tracing_ = true; }
  template <typename Make>
  void trace(const Make& make) {
    if (tracing_) add_line(make());
  }
  const std::vector<std::string>& lines() const { return lines_; }

  // ---- what the store did ---------------------------------------------------------------------
  void acquired(int64_t fence) { newest_fence_ = std::max(newest_fence_, fence); }
  void applied(int64_t fence, const StoreOp& op, const StoreDone& done);
  void refused_stale() { ++stale_refused_; }
  bool was_leased(const std::string& search, const UnitId& unit, Fence fence) const;
  // The packed result that was durable first; null: none.
  const std::string* first_result(const std::string& search, const UnitId& unit) const;

  // ---- what was said --------------------------------------------------------------------------
  void sent_wrong_result(const std::string& packed) { wrong_results_.insert(packed); }
  bool is_wrong_result(const std::string& packed) const { return wrong_results_.contains(packed); }
  bool any_wrong_result() const { return !wrong_results_.empty(); }
  // A client was told that the search is paused or cancelled: nothing of it is granted until it
  // asks for something else.
  void stopped_by_request(const std::string& search, bool stopped);
  bool is_stopped(const std::string& search) const { return stopped_.contains(search); }
  // The priority that a client was told; nothing while another request is on its way.
  std::map<std::string, int64_t> priorities;

  int64_t stale_refused() const { return stale_refused_; }
  int64_t acks = 0;
  int64_t grants = 0;
  int64_t conflicts = 0;  // that the store found
  int64_t mishaps = 0;

 private:
  struct History {
    std::map<UnitId, std::string> first;
    std::set<std::pair<UnitId, int64_t>> leases;
  };
  void add_line(const std::string& text);

  const Timeline& timeline_;
  std::vector<Violation> violations_;
  bool tracing_ = false;
  std::vector<std::string> lines_;
  int64_t newest_fence_ = 0;
  int64_t stale_refused_ = 0;
  std::map<std::string, History> searches_;
  std::map<std::string, std::string> fingerprints_;
  std::set<std::string> wrong_results_;
  std::set<std::string> stopped_;
};

}  // namespace bitalloc::sim
