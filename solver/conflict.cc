#include "solver/conflict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "solver/solve_reduced.h"

namespace bitalloc {
namespace {

constexpr double kMaxSeconds = 2;
constexpr std::size_t kMaxTries = 5000;

using Flags = std::vector<bool>;

class ConflictSearch {
 public:
  ConflictSearch(const Problem& problem, const Constraints& constraints,
                 const SolveOptions& options)
      : problem_(problem), constraints_(constraints) {
    for (auto& row : problem_.score) {
      std::fill(row.begin(), row.end(), 0.0);
    }
    const double seconds = std::min(options.time_limit_seconds, kMaxSeconds);
    limits_.deadline = std::chrono::steady_clock::now() +
                       std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                           std::chrono::duration<double>(seconds));
    limits_.stop = options.stop;
    limits_.max_points = options.max_points;
  }

  // Without whatever can be left out: first halves, then quarters, … then one by one.
  Result<Flags> irreducible() {
    Flags kept(constraint_names(constraints_).size(), true);
    for (std::size_t chunk = kept.size(); chunk > 0; chunk /= 2) {
      for (std::size_t begin = 0; begin < kept.size(); begin += chunk) {
        Flags without = kept;
        for (std::size_t k = begin; k < std::min(begin + chunk, kept.size()); ++k) {
          without[k] = false;
        }
        if (without == kept) {
          continue;
        }
        BA_ASSIGN_OR_RETURN(const bool conflicts, conflict(without));
        if (conflicts) {
          kept = std::move(without);
        }
      }
    }
    return kept;
  }

  // A smaller set than `kept` that conflicts, if all smaller ones can be tried; else `kept`.
  Result<Flags> smallest(const Flags& kept, bool* all_tried) {
    const auto size = std::count(kept.begin(), kept.end(), true);
    std::size_t tries = 0;
    for (std::ptrdiff_t count = 1; count < size; ++count) {
      Flags chosen(kept.size(), false);
      std::fill(chosen.end() - count, chosen.end(), true);
      do {
        if (++tries > kMaxTries || std::chrono::steady_clock::now() > limits_.deadline) {
          return kept;
        }
        BA_ASSIGN_OR_RETURN(const bool conflicts, conflict(chosen));
        if (conflicts) {
          *all_tried = true;
          return chosen;
        }
      } while (std::next_permutation(chosen.begin(), chosen.end()));
    }
    *all_tried = true;
    return kept;
  }

 private:
  Result<bool> conflict(const Flags& kept) {
    const auto reduced = reduce(problem_, subset(constraints_, kept));
    if (!reduced) {
      return true;
    }
    BA_ASSIGN_OR_RETURN(const Outcome outcome, solve_reduced(*reduced, limits_, Want::kAny));
    return outcome.kind == Outcome::Kind::kInfeasible;
  }

  Problem problem_;  // without scores
  const Constraints& constraints_;
  RowLimits limits_;
};

std::string row_text(const Row& row) {
  if (!std::isfinite(row.lower)) {
    return fmt::format("at most {}", row.upper);
  }
  if (!std::isfinite(row.upper)) {
    return fmt::format("at least {}", row.lower);
  }
  return fmt::format("{} to {}", row.lower, row.upper);
}

// What each constraint says, in the order of constraint_names().
std::vector<std::string> texts(const Constraints& constraints) {
  std::vector<std::string> texts;
  if (constraints.effective_bits) {
    texts.push_back(fmt::format("at most {} effective bits", *constraints.effective_bits));
  }
  for (const Row& row : constraints.rows) {
    texts.push_back(row_text(row));
  }
  for (const Pin& pin : constraints.pins) {
    texts.push_back(fmt::format("site {} takes candidate {}", pin.site, pin.candidate));
  }
  for (const Exclusion& exclusion : constraints.exclusions) {
    texts.push_back(
        fmt::format("site {} does not take candidate {}", exclusion.site, exclusion.candidate));
  }
  for (const Group& group : constraints.groups) {
    texts.push_back(fmt::format("sites {} agree", fmt::join(group.sites, ", ")));
  }
  for (const PairRule& pair : constraints.pairs) {
    texts.push_back(fmt::format("sites {} and {} take one of {} pairs", pair.first, pair.second,
                                pair.allowed.size()));
  }
  if (constraints.distinct) {
    texts.push_back(fmt::format("at most {} distinct candidates", constraints.distinct->limit));
  }
  if (constraints.changes) {
    texts.push_back(fmt::format("at most {} changes", constraints.changes->limit));
  }
  return texts;
}

}  // namespace

Result<Conflict> find_conflict(const Problem& problem, const Constraints& constraints,
                               const SolveOptions& options) {
  ConflictSearch search(problem, constraints, options);
  BA_ASSIGN_OR_RETURN(Flags kept, search.irreducible());
  Conflict conflict;
  BA_ASSIGN_OR_RETURN(kept, search.smallest(kept, &conflict.smallest));
  const std::vector<std::string> names = constraint_names(constraints);
  const std::vector<std::string> all_texts = texts(constraints);
  for (std::size_t k = 0; k < kept.size(); ++k) {
    if (kept[k]) {
      conflict.names.push_back(names[k]);
      conflict.text +=
          fmt::format("{}{} ({})", conflict.text.empty() ? "" : "; ", names[k], all_texts[k]);
    }
  }
  return conflict;
}

}  // namespace bitalloc
