#include "solver/solve_reduced.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "solver/multi_row.h"

namespace bitalloc {
namespace {

using Kind = Outcome::Kind;

Result<Outcome> solve_open_labels(const Reduced& reduced, const RowLimits& limits, Want want) {
  if (reduced.capacity.size() > 1 || !reduced.clauses.empty()) {
    return solve_rows(reduced, limits, want);
  }
  const IntegerProblem integers = to_integers(reduced, 0);
  BA_ASSIGN_OR_RETURN(RowAnswer answer,
                      solve_row(integers, capacity_of(reduced, 0, integers), limits));
  return Outcome{Kind::kFound,       to_choice(reduced, answer.choice),
                 answer.upper_bound, answer.lower_bound,
                 answer.proven,      answer.cbc};
}

// How many sites take each label under a choice.
std::vector<int> label_counts(const Reduced& reduced, const std::vector<int>& choice) {
  std::vector<int> counts(reduced.num_labels, 0);
  for (const ReducedSite& site : reduced.sites) {
    const auto taken =
        std::find_if(site.options.begin(), site.options.end(), [&](const Option& option) {
          for (std::size_t m = 0; m < site.members.size(); ++m) {
            if (option.candidate[m] != choice[site.members[m]]) {
              return false;
            }
          }
          return true;
        });
    for (const int label : taken->labels) {
      ++counts[label];
    }
  }
  return counts;
}

// A part of the search: these labels may be taken, and those of them that need no deciding any
// more.
struct Node {
  std::vector<bool> allowed;
  std::vector<bool> kept;
  double bound = 0;  // of the node it was split from
};

class LabelSearch {
 public:
  LabelSearch(const Reduced& reduced, const RowLimits& limits, Want want)
      : reduced_(reduced), limits_(limits), want_(want) {}

  Result<Outcome> run() {
    const std::size_t count = reduced_.num_labels;
    nodes_.push_back({std::vector(count, true), std::vector(count, false), 0});
    while (!nodes_.empty() && !is_over()) {
      const Node node = std::move(nodes_.back());
      nodes_.pop_back();
      if (!best_ || node.bound < best_->upper_bound) {
        BA_RETURN_IF_ERROR(look_into(node));
      }
    }
    return outcome();
  }

 private:
  bool is_over() const {
    return (want_ == Want::kAny && best_) || limits_.stop.stop_requested() ||
           std::chrono::steady_clock::now() > limits_.deadline;
  }

  Status look_into(Node node) {
    if (std::count(node.kept.begin(), node.kept.end(), true) == reduced_.max_labels) {
      node.allowed = node.kept;
    }
    const auto open = with_labels(reduced_, node.allowed);
    if (!open) {
      return {};
    }
    BA_ASSIGN_OR_RETURN(Outcome outcome, solve_open_labels(*open, limits_, Want::kBest));
    disagreed_ = disagreed_ || outcome.cbc == CbcVerdict::kDisagreed;
    if (outcome.kind == Kind::kInfeasible) {
      return {};
    }
    if (outcome.kind == Kind::kUnknown) {
      open_bound_ = std::min(open_bound_, outcome.lower_bound);
      return {};
    }
    const std::vector<int> counts = label_counts(*open, outcome.choice);
    const auto taken = std::count_if(counts.begin(), counts.end(), [](int n) { return n > 0; });
    if (taken > reduced_.max_labels) {
      split(node, counts, outcome.lower_bound);
      return {};
    }
    if (!outcome.proven) {
      open_bound_ = std::min(open_bound_, outcome.lower_bound);
    }
    if (!best_ || outcome.upper_bound < best_->upper_bound) {
      best_ = std::move(outcome);
    }
    return {};
  }

  // By the undecided label that most sites take: without it, and (first) with it for good.
  void split(const Node& node, const std::vector<int>& counts, double bound) {
    int label = -1;
    for (int k = 0; k < reduced_.num_labels; ++k) {
      if (counts[k] > 0 && !node.kept[k] && (label < 0 || counts[k] > counts[label])) {
        label = k;
      }
    }
    BA_CHECK(label >= 0, "more labels taken than kept");
    Node without{node.allowed, node.kept, bound};
    without.allowed[label] = false;
    nodes_.push_back(std::move(without));
    Node with{node.allowed, node.kept, bound};
    with.kept[label] = true;
    nodes_.push_back(std::move(with));
  }

  Outcome outcome() {
    double bound = open_bound_;
    for (const Node& node : nodes_) {
      bound = std::min(bound, node.bound);
    }
    if (!best_) {
      Outcome none;
      none.kind = bound == kNone ? Kind::kInfeasible : Kind::kUnknown;
      none.lower_bound = bound == kNone ? 0 : bound;
      return none;
    }
    if (disagreed_) {
      best_->cbc = CbcVerdict::kDisagreed;
    }
    best_->proven = bound >= best_->upper_bound;
    best_->lower_bound = std::min(bound, best_->proven ? best_->lower_bound : best_->upper_bound);
    return *std::move(best_);
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  const Reduced& reduced_;
  const RowLimits& limits_;
  const Want want_;
  std::vector<Node> nodes_;  // a stack
  std::optional<Outcome> best_;
  bool disagreed_ = false;     // CBC, in any node
  double open_bound_ = kNone;  // of nodes that could not be decided
};

}  // namespace

Result<Outcome> solve_reduced(const Reduced& reduced, const RowLimits& limits, Want want) {
  if (reduced.max_labels > 0) {
    return LabelSearch(reduced, limits, want).run();
  }
  return solve_open_labels(reduced, limits, want);
}

}  // namespace bitalloc
