#include "solver/neighbours.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

namespace bitalloc {
namespace {

// Sites that change together, by the groups.
std::vector<std::vector<int>> merged_sites(const Problem& problem, const Constraints& constraints) {
  std::vector<int> leader(problem.num_sites());
  std::iota(leader.begin(), leader.end(), 0);
  for (const Group& group : constraints.groups) {
    for (const int site : group.sites) {
      const int from = leader[site];
      const int to = leader[group.sites.front()];
      std::replace(leader.begin(), leader.end(), from, to);
    }
  }
  std::map<int, std::vector<int>> members;
  for (std::size_t i = 0; i < leader.size(); ++i) {
    members[leader[i]].push_back(static_cast<int>(i));
  }
  std::vector<std::vector<int>> units;
  for (auto& [ignored, sites] : members) {
    units.push_back(std::move(sites));
  }
  return units;
}

// Some sites that change together, and the candidate that they change to.
struct Option {
  int unit = 0;
  int candidate = 0;
  double score = 0;               // what it adds to the objective
  double bits = 0;                // to Σ width·bits
  std::vector<double> rows = {};  // to the sum of each row
  int changes = 0;                // to the sites that differ from the deployed assignment
};

// A move (`second` −1) or a swap, as indices of options.
struct Step {
  double change = 0;
  int first = 0;
  int second = -1;
};

// "Worse" on a heap whose top is the best.
bool comes_later(const Step& a, const Step& b) {
  if (a.change != b.change) return a.change > b.change;
  return std::pair(a.first, a.second) > std::pair(b.first, b.second);
}

// A row with its sum at the assignment. Its bounds are wider than those of violations(), which has
// the last word.
struct RowSum {
  const Row* row;
  double sum = 0;
  double lower = 0;
  double upper = 0;
};

class Neighbourhood {
 public:
  Neighbourhood(const Problem& problem, const Constraints& constraints,
                const std::vector<int>& choice)
      : problem_(problem),
        constraints_(constraints),
        choice_(choice),
        units_(merged_sites(problem, constraints)) {
    add_rows();
    add_labels();
    add_options();
  }

  std::vector<Neighbour> best(const std::set<std::vector<int>>& known, std::size_t count) {
    std::vector<Step> steps = likely_steps();
    std::make_heap(steps.begin(), steps.end(), comes_later);
    std::vector<Neighbour> found;
    while (found.size() < count && !steps.empty()) {
      std::pop_heap(steps.begin(), steps.end(), comes_later);
      const Step step = steps.back();
      steps.pop_back();
      std::vector<int> next = after(step);
      if (known.contains(next) || !violations(problem_, constraints_, next).empty()) continue;
      found.push_back({std::move(next), step.change});
    }
    return found;
  }

 private:
  void add_rows();
  void add_labels();
  void add_options();
  bool may_take(int unit, int candidate) const;
  Option option(int unit, int candidate) const;
  std::vector<Step> likely_steps();
  bool likely(const Option& first, const Option* second);
  void relabel(const Option& option, int sign);
  std::vector<int> after(const Step& step) const;

  const Problem& problem_;
  const Constraints& constraints_;
  const std::vector<int>& choice_;
  std::vector<std::vector<int>> units_;  // of sites
  std::vector<Option> options_;
  Row budget_;
  std::vector<RowSum> rows_;
  int changes_ = 0;                       // from the deployed assignment, at the assignment
  std::vector<std::vector<int>> labels_;  // [site][candidate], as numbers
  std::vector<int> label_count_;          // [label] sites that have it
};

void Neighbourhood::add_rows() {
  if (constraints_.effective_bits) {
    budget_.coefficient = problem_.bits;
    for (std::size_t i = 0; i < problem_.num_sites(); ++i) {
      for (double& bits : budget_.coefficient[i]) bits *= problem_.width[i];
    }
    budget_.upper = *constraints_.effective_bits *
                    std::accumulate(problem_.width.begin(), problem_.width.end(), 0.0);
    rows_.push_back({&budget_});
  }
  for (const Row& row : constraints_.rows) rows_.push_back({&row});
  for (RowSum& one : rows_) {
    long double sum = 0;
    for (std::size_t i = 0; i < choice_.size(); ++i) {
      sum += one.row->coefficient[i][choice_[i]];
    }
    one.sum = static_cast<double>(sum);
    const auto slack = [&](double bound) {
      return std::isinf(bound) ? 0 : 4 * row_tolerance(*one.row, bound);
    };
    one.lower = one.row->lower - slack(one.row->lower);
    one.upper = one.row->upper + slack(one.row->upper);
  }
  if (!constraints_.changes) return;
  for (std::size_t i = 0; i < choice_.size(); ++i) {
    const int deployed = constraints_.changes->deployed[i];
    changes_ += deployed != -1 && deployed != choice_[i] ? 1 : 0;
  }
}

void Neighbourhood::add_labels() {
  if (!constraints_.distinct) return;
  std::map<std::string, int> numbers;
  for (const auto& site : constraints_.distinct->labels) {
    auto& own = labels_.emplace_back();
    for (const std::string& label : site) {
      own.push_back(numbers.emplace(label, static_cast<int>(numbers.size())).first->second);
    }
  }
  label_count_.assign(numbers.size(), 0);
  for (std::size_t i = 0; i < choice_.size(); ++i) ++label_count_[labels_[i][choice_[i]]];
}

void Neighbourhood::add_options() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const int unit = static_cast<int>(u);
    int candidates = static_cast<int>(problem_.bits[units_[u].front()].size());
    for (const int site : units_[u]) {
      candidates = std::min(candidates, static_cast<int>(problem_.bits[site].size()));
    }
    for (int j = 0; j < candidates; ++j) {
      if (may_take(unit, j)) options_.push_back(option(unit, j));
    }
  }
}

// Another candidate than now, neither excluded nor at odds with a pin.
bool Neighbourhood::may_take(int unit, int candidate) const {
  const auto& sites = units_[unit];
  const auto touches = [&](int site) {
    return std::find(sites.begin(), sites.end(), site) != sites.end();
  };
  return choice_[sites.front()] != candidate &&
         std::none_of(
             constraints_.pins.begin(), constraints_.pins.end(),
             [&](const Pin& pin) { return touches(pin.site) && pin.candidate != candidate; }) &&
         std::none_of(constraints_.exclusions.begin(), constraints_.exclusions.end(),
                      [&](const Exclusion& exclusion) {
                        return touches(exclusion.site) && exclusion.candidate == candidate;
                      });
}

Option Neighbourhood::option(int unit, int candidate) const {
  Option made{unit, candidate};
  made.rows.assign(rows_.size(), 0.0);
  for (const int site : units_[unit]) {
    const int now = choice_[site];
    made.score += problem_.score[site][candidate] - problem_.score[site][now];
    made.bits += problem_.width[site] * (problem_.bits[site][candidate] - problem_.bits[site][now]);
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      const auto& coefficient = rows_[k].row->coefficient[site];
      made.rows[k] += coefficient[candidate] - coefficient[now];
    }
    if (!constraints_.changes) continue;
    const int deployed = constraints_.changes->deployed[site];
    if (deployed != -1) made.changes += (deployed != candidate) - (deployed != now);
  }
  return made;
}

// All moves and swaps, less those that cannot keep the constraints.
std::vector<Step> Neighbourhood::likely_steps() {
  std::vector<Step> steps;
  for (int a = 0; a < static_cast<int>(options_.size()); ++a) {
    const Option& first = options_[a];
    if (likely(first, nullptr)) steps.push_back({first.score, a});
    for (int b = a + 1; b < static_cast<int>(options_.size()); ++b) {
      const Option& second = options_[b];
      const bool trade =
          (first.bits <= 0 && second.bits >= 0) || (first.bits >= 0 && second.bits <= 0);
      if (first.unit == second.unit || !trade || !likely(first, &second)) continue;
      steps.push_back({first.score + second.score, a, b});
    }
  }
  return steps;
}

bool Neighbourhood::likely(const Option& first, const Option* second) {
  for (std::size_t k = 0; k < rows_.size(); ++k) {
    const double sum = rows_[k].sum + first.rows[k] + (second != nullptr ? second->rows[k] : 0);
    if (sum > rows_[k].upper || sum < rows_[k].lower) return false;
  }
  if (constraints_.changes) {
    const int changes = changes_ + first.changes + (second != nullptr ? second->changes : 0);
    if (changes > constraints_.changes->limit) return false;
  }
  if (!constraints_.distinct) return true;
  relabel(first, 1);
  if (second != nullptr) relabel(*second, 1);
  const auto unused = std::count(label_count_.begin(), label_count_.end(), 0);
  relabel(first, -1);
  if (second != nullptr) relabel(*second, -1);
  return std::ssize(label_count_) - unused <= constraints_.distinct->limit;
}

void Neighbourhood::relabel(const Option& option, int sign) {
  for (const int site : units_[option.unit]) {
    label_count_[labels_[site][choice_[site]]] -= sign;
    label_count_[labels_[site][option.candidate]] += sign;
  }
}

std::vector<int> Neighbourhood::after(const Step& step) const {
  std::vector<int> next = choice_;
  for (const int k : {step.first, step.second}) {
    if (k < 0) continue;
    for (const int site : units_[options_[k].unit]) next[site] = options_[k].candidate;
  }
  return next;
}

}  // namespace

std::vector<Neighbour> best_neighbours(const Problem& problem, const Constraints& constraints,
                                       const std::vector<int>& choice,
                                       const std::set<std::vector<int>>& known, std::size_t count) {
  return Neighbourhood(problem, constraints, choice).best(known, count);
}

}  // namespace bitalloc
