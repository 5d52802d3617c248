#include "solver/reduced.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace bitalloc {
namespace {

constexpr std::size_t kMaxJointOptions = 4096;

// Merges sites; a site that went into another has no members any more.
class Merger {
 public:
  explicit Merger(const Problem& problem) : site_of_(problem.num_sites()) {
    std::iota(site_of_.begin(), site_of_.end(), 0);
    for (std::size_t i = 0; i < problem.num_sites(); ++i) {
      ReducedSite site{{static_cast<int>(i)}, {}};
      for (std::size_t j = 0; j < problem.bits[i].size(); ++j) {
        site.options.push_back({{static_cast<int>(j)}, 0, {}, {}});
      }
      sites_.push_back(std::move(site));
    }
  }

  // Keeps the options of `site` whose candidate is `keeps`.
  template <typename Keeps>
  void filter(int site, const Keeps& keeps) {
    const Place at = place(site);
    std::erase_if(sites_[at.site].options,
                  [&](const Option& option) { return !keeps(option.candidate[at.member]); });
  }

  // Joins two sites over the pairs of candidates that are `allowed`.
  template <typename Allowed>
  void join(int first, int second, const Allowed& allowed) {
    const Place a = place(first);
    const Place b = place(second);
    ReducedSite& into = sites_[a.site];
    if (a.site == b.site) {
      std::erase_if(into.options, [&](const Option& option) {
        return !allowed(option.candidate[a.member], option.candidate[b.member]);
      });
      return;
    }
    ReducedSite& from = sites_[b.site];
    ReducedSite joint;
    joint.members = into.members;
    joint.members.insert(joint.members.end(), from.members.begin(), from.members.end());
    for (const Option& x : into.options) {
      for (const Option& y : from.options) {
        if (allowed(x.candidate[a.member], y.candidate[b.member])) {
          joint.options.push_back(x);
          joint.options.back().candidate.insert(joint.options.back().candidate.end(),
                                                y.candidate.begin(), y.candidate.end());
        }
      }
    }
    for (const int member : from.members) {
      site_of_[member] = a.site;
    }
    from = {};
    into = std::move(joint);
  }

  // The place in sites_ that a site has gone to, and how many options it has there.
  int index(int site) const { return site_of_[site]; }
  std::size_t num_options(int index) const { return sites_[index].options.size(); }

  // The merged sites by first member, members and options in growing order.
  std::vector<ReducedSite> take() {
    std::erase_if(sites_, [](const ReducedSite& site) { return site.members.empty(); });
    for (ReducedSite& site : sites_) {
      if (!std::is_sorted(site.members.begin(), site.members.end())) {
        sort_members(&site);
      }
    }
    std::sort(sites_.begin(), sites_.end(), [](const ReducedSite& a, const ReducedSite& b) {
      return a.members.front() < b.members.front();
    });
    return std::move(sites_);
  }

 private:
  struct Place {
    int site = 0;
    int member = 0;
  };

  Place place(int site) const {
    const auto& members = sites_[site_of_[site]].members;
    return {site_of_[site],
            static_cast<int>(std::find(members.begin(), members.end(), site) - members.begin())};
  }

  static void sort_members(ReducedSite* site) {
    std::vector<int> order(site->members.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return site->members[a] < site->members[b]; });
    const auto permuted = [&](const std::vector<int>& values) {
      std::vector<int> out;
      for (const int k : order) {
        out.push_back(values[k]);
      }
      return out;
    };
    site->members = permuted(site->members);
    for (Option& option : site->options) {
      option.candidate = permuted(option.candidate);
    }
    std::sort(site->options.begin(), site->options.end(),
              [](const Option& a, const Option& b) { return a.candidate < b.candidate; });
  }

  std::vector<ReducedSite> sites_;
  std::vector<int> site_of_;  // [site of the problem] → sites_
};

bool is_allowed(const PairRule& pair, int first, int second) {
  return std::find(pair.allowed.begin(), pair.allowed.end(), std::pair(first, second)) !=
         pair.allowed.end();
}

// Which pairs to merge: those whose sites, with all that other pairs link to them, have few enough
// joint options.
std::vector<bool> small_components(const Merger& merger, const std::vector<PairRule>& pairs) {
  std::map<int, int> parent;  // merged site → another one of its component; itself: the root
  const auto root = [&](int site) {
    int at = parent.emplace(site, site).first->second;
    while (parent[at] != at) {
      at = parent[at];
    }
    return at;
  };
  for (const PairRule& pair : pairs) {
    const int first = root(merger.index(pair.first));
    parent[root(merger.index(pair.second))] = first;
  }
  std::map<int, std::size_t> joint;  // root → joint options, or more than enough
  for (const auto& [site, unused] : parent) {
    std::size_t& count = joint.emplace(root(site), 1).first->second;
    count = std::min(count * merger.num_options(site), kMaxJointOptions + 1);
  }
  std::vector<bool> merges;
  for (const PairRule& pair : pairs) {
    merges.push_back(joint[root(merger.index(pair.first))] <= kMaxJointOptions);
  }
  return merges;
}

// The merged sites, and in `left` the pairs that were too large to merge.
std::vector<ReducedSite> merge_sites(const Problem& problem, const Constraints& constraints,
                                     std::vector<const PairRule*>* left) {
  Merger merger(problem);
  for (const Pin& pin : constraints.pins) {
    merger.filter(pin.site, [&](int candidate) { return candidate == pin.candidate; });
  }
  for (const Exclusion& exclusion : constraints.exclusions) {
    merger.filter(exclusion.site, [&](int candidate) { return candidate != exclusion.candidate; });
  }
  for (const Group& group : constraints.groups) {
    for (const int site : group.sites) {
      merger.join(group.sites.front(), site, std::equal_to<int>());
    }
  }
  const std::vector<bool> merges = small_components(merger, constraints.pairs);
  for (std::size_t k = 0; k < merges.size(); ++k) {
    const PairRule& pair = constraints.pairs[k];
    if (merges[k]) {
      merger.join(pair.first, pair.second,
                  [&](int first, int second) { return is_allowed(pair, first, second); });
    } else {
      left->push_back(&pair);
    }
  }
  return merger.take();
}

void add_labels(const DistinctLimit& distinct, Reduced* reduced) {
  std::map<std::string, int> ids;
  for (const auto& site : distinct.labels) {
    for (const std::string& label : site) {
      ids.emplace(label, static_cast<int>(ids.size()));
    }
  }
  for (ReducedSite& site : reduced->sites) {
    for (Option& option : site.options) {
      for (std::size_t m = 0; m < site.members.size(); ++m) {
        option.labels.push_back(ids.at(distinct.labels[site.members[m]][option.candidate[m]]));
      }
      std::sort(option.labels.begin(), option.labels.end());
      option.labels.erase(std::unique(option.labels.begin(), option.labels.end()),
                          option.labels.end());
    }
  }
  reduced->num_labels = static_cast<int>(ids.size());
  reduced->max_labels = distinct.limit < reduced->num_labels ? distinct.limit : 0;
}

std::int64_t to_units(long double value, long double unit) {
  constexpr long double kFar = 0x1p61L;  // beyond every sum of weights
  return static_cast<std::int64_t>(std::clamp(std::floor(value / unit), -kFar, kFar));
}

// Adds Σ sign·value ≤ capacity; value: [sites of the problem][candidates] flat.
void add_row(const Problem& problem, const std::vector<std::int64_t>& value, int sign,
             std::int64_t capacity, Reduced* reduced) {
  std::vector<std::size_t> begin = {0};
  for (const auto& bits : problem.bits) {
    begin.push_back(begin.back() + bits.size());
  }
  for (ReducedSite& site : reduced->sites) {
    for (Option& option : site.options) {
      std::int64_t weight = 0;
      for (std::size_t m = 0; m < site.members.size(); ++m) {
        weight += sign * value[begin[site.members[m]] + option.candidate[m]];
      }
      option.weight.push_back(weight);
    }
  }
  reduced->capacity.push_back(capacity);
}

void add_budget(const Problem& problem, double budget, Reduced* reduced) {
  const WholeWeights weights = budget_weights(problem);
  long double width = 0;
  for (const double w : problem.width) {
    width += w;
  }
  const long double bits = width * budget;
  add_row(problem, weights.values, 1,
          to_units(bits + kBudgetTolerance * std::fabs(bits), weights.unit), reduced);
}

void add_row(const Problem& problem, const Row& row, Reduced* reduced) {
  std::vector<double> flat;
  for (const auto& site : row.coefficient) {
    flat.insert(flat.end(), site.begin(), site.end());
  }
  const WholeWeights weights = to_whole_weights(flat);
  if (std::isfinite(row.upper)) {
    const long double bound = static_cast<long double>(row.upper) + row_tolerance(row, row.upper);
    add_row(problem, weights.values, 1, to_units(bound, weights.unit), reduced);
  }
  if (std::isfinite(row.lower)) {
    const long double bound = row_tolerance(row, row.lower) - static_cast<long double>(row.lower);
    add_row(problem, weights.values, -1, to_units(bound, weights.unit), reduced);
  }
}

void add_changes(const Problem& problem, const ChangeLimit& changes, Reduced* reduced) {
  std::vector<std::int64_t> changed;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    for (int j = 0; j < static_cast<int>(problem.bits[i].size()); ++j) {
      changed.push_back(changes.deployed[i] != -1 && changes.deployed[i] != j ? 1 : 0);
    }
  }
  add_row(problem, changed, 1, changes.limit, reduced);
}

struct Extent {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

Extent extent(const ReducedSite& site, std::size_t row) {
  const auto less = [row](const Option& a, const Option& b) {
    return a.weight[row] < b.weight[row];
  };
  const auto [low, high] = std::minmax_element(site.options.begin(), site.options.end(), less);
  return {low->weight[row], high->weight[row]};
}

// Takes every site's lightest weight off a row. False when the row cannot hold what is left.
bool shift_row(std::size_t row, Reduced* reduced) {
  for (ReducedSite& site : reduced->sites) {
    const std::int64_t low = extent(site, row).low;
    for (Option& option : site.options) {
      option.weight[row] -= low;
    }
    reduced->capacity[row] -= low;
  }
  return reduced->capacity[row] >= 0;
}

// Takes away, until nothing changes, the options that are too heavy beside the lightest of all
// other sites. False when a site is left with none. Clauses know options by place: then none is
// taken.
bool drop_heavy(Reduced* reduced) {
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t row = 0; row < reduced->capacity.size(); ++row) {
      if (!shift_row(row, reduced)) {
        return false;
      }
    }
    if (!reduced->clauses.empty()) {
      return true;
    }
    for (ReducedSite& site : reduced->sites) {
      const std::size_t dropped = std::erase_if(site.options, [&](const Option& option) {
        for (std::size_t row = 0; row < reduced->capacity.size(); ++row) {
          if (option.weight[row] > reduced->capacity[row]) {
            return true;
          }
        }
        return false;
      });
      changed = changed || dropped > 0;
      if (site.options.empty()) {
        return false;
      }
    }
  }
  return true;
}

void erase_row(std::size_t row, Reduced* reduced) {
  reduced->capacity.erase(reduced->capacity.begin() + row);
  for (ReducedSite& site : reduced->sites) {
    for (Option& option : site.options) {
      option.weight.erase(option.weight.begin() + row);
    }
  }
}

// Rows that nothing can exceed go, but for the last one: it decides ties (single_row.h).
void drop_slack_rows(Reduced* reduced) {
  for (std::size_t row = reduced->capacity.size(); row-- > 0 && reduced->capacity.size() > 1;) {
    std::int64_t most = 0;
    for (const ReducedSite& site : reduced->sites) {
      most += extent(site, row).high;
    }
    if (most <= reduced->capacity[row]) {
      erase_row(row, reduced);
    }
  }
}

bool any_empty(const Reduced& reduced) {
  return std::any_of(reduced.sites.begin(), reduced.sites.end(),
                     [](const ReducedSite& site) { return site.options.empty(); });
}

bool presolve(Reduced* reduced) {
  if (any_empty(*reduced) || !drop_heavy(reduced)) {
    return false;
  }
  drop_slack_rows(reduced);
  return true;
}

void set_scores(const Problem& problem, Reduced* reduced) {
  std::vector<double> lowest;
  long double magnitude = 0;
  for (const auto& row : problem.score) {
    lowest.push_back(*std::min_element(row.begin(), row.end()));
    magnitude += std::fabs(lowest.back());
    reduced->score_offset += lowest.back();
  }
  reduced->score_noise = static_cast<double>(magnitude * 0x1p-51L);
  for (ReducedSite& site : reduced->sites) {
    double low = INFINITY;
    for (Option& option : site.options) {
      for (std::size_t m = 0; m < site.members.size(); ++m) {
        const int i = site.members[m];
        option.score += problem.score[i][option.candidate[m]] - lowest[i];
      }
      low = std::min(low, option.score);
    }
    for (Option& option : site.options) {
      option.score -= low;
    }
    reduced->score_offset += low;
  }
}

void add_clauses(const std::vector<const PairRule*>& pairs, Reduced* reduced) {
  const auto find = [&](int member) {
    for (std::size_t s = 0; s < reduced->sites.size(); ++s) {
      const auto& members = reduced->sites[s].members;
      const auto at = std::find(members.begin(), members.end(), member);
      if (at != members.end()) {
        return std::pair(static_cast<int>(s), static_cast<int>(at - members.begin()));
      }
    }
    return std::pair(-1, -1);
  };
  for (const PairRule* pair : pairs) {
    const auto [first, first_member] = find(pair->first);
    const auto [second, second_member] = find(pair->second);
    Clause clause{first, second, {}};
    for (const Option& x : reduced->sites[first].options) {
      auto& row = clause.allowed.emplace_back();
      for (const Option& y : reduced->sites[second].options) {
        // Sites that a later pair has merged: the rule speaks of one option.
        row.push_back((first != second || &x == &y) &&
                      is_allowed(*pair, x.candidate[first_member], y.candidate[second_member]));
      }
    }
    reduced->clauses.push_back(std::move(clause));
  }
}

}  // namespace

std::optional<Reduced> reduce(const Problem& problem, const Constraints& constraints) {
  Reduced reduced;
  std::vector<const PairRule*> large_pairs;
  reduced.sites = merge_sites(problem, constraints, &large_pairs);
  if (any_empty(reduced)) {
    return std::nullopt;
  }
  if (constraints.distinct) {
    add_labels(*constraints.distinct, &reduced);
  }
  if (constraints.effective_bits) {
    add_budget(problem, *constraints.effective_bits, &reduced);
  }
  for (const Row& row : constraints.rows) {
    add_row(problem, row, &reduced);
  }
  if (constraints.changes) {
    add_changes(problem, *constraints.changes, &reduced);
  }
  add_clauses(large_pairs, &reduced);
  if (!presolve(&reduced)) {
    return std::nullopt;
  }
  set_scores(problem, &reduced);
  return reduced;
}

std::optional<Reduced> with_labels(const Reduced& reduced, const std::vector<bool>& allowed) {
  Reduced kept = reduced;
  kept.max_labels = 0;
  const auto is_open = [&](const Option& option) {
    return std::all_of(option.labels.begin(), option.labels.end(),
                       [&](int label) { return allowed[label]; });
  };
  for (Clause& clause : kept.clauses) {
    const auto& first = reduced.sites[clause.first].options;
    const auto& second = reduced.sites[clause.second].options;
    std::vector<std::vector<bool>> rows;
    for (std::size_t x = 0; x < first.size(); ++x) {
      if (is_open(first[x])) {
        auto& row = rows.emplace_back();
        for (std::size_t y = 0; y < second.size(); ++y) {
          if (is_open(second[y])) {
            row.push_back(clause.allowed[x][y]);
          }
        }
      }
    }
    clause.allowed = std::move(rows);
  }
  for (ReducedSite& site : kept.sites) {
    std::erase_if(site.options, [&](const Option& option) { return !is_open(option); });
  }
  if (!presolve(&kept)) {
    return std::nullopt;
  }
  return kept;
}

IntegerProblem to_integers(const Reduced& reduced, std::size_t row) {
  IntegerProblem integers;
  integers.unit = 1;
  integers.score_offset = reduced.score_offset;
  integers.score_noise = reduced.score_noise;
  for (const ReducedSite& site : reduced.sites) {
    std::vector<Item> items;
    for (const Option& option : site.options) {
      items.push_back({static_cast<int>(items.size()),
                       option.weight.empty() ? 0 : option.weight[row], option.score});
    }
    integers.all.push_back(std::move(items));
  }
  finish(&integers);
  return integers;
}

std::int64_t capacity_of(const Reduced& reduced, std::size_t row, const IntegerProblem& integers) {
  if (reduced.capacity.empty()) {
    return 0;
  }
  const auto units = reduced.capacity[row] / static_cast<std::int64_t>(integers.unit);
  return std::min(units, integers.max_weight);
}

std::vector<int> to_choice(const Reduced& reduced, const std::vector<int>& picked) {
  std::size_t count = 0;
  for (const ReducedSite& site : reduced.sites) {
    count += site.members.size();
  }
  std::vector<int> choice(count, 0);
  for (std::size_t s = 0; s < reduced.sites.size(); ++s) {
    const ReducedSite& site = reduced.sites[s];
    for (std::size_t m = 0; m < site.members.size(); ++m) {
      choice[site.members[m]] = site.options[picked[s]].candidate[m];
    }
  }
  return choice;
}

}  // namespace bitalloc
