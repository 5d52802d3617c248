#include "solver/relaxation.h"

#include <algorithm>
#include <limits>

namespace bitalloc {
namespace {

std::vector<int> lower_hull(const std::vector<Item>& items) {
  std::vector<int> hull;
  const auto slope = [&](int a, int b) {
    return (items[a].score - items[b].score) /
           static_cast<double>(items[b].weight - items[a].weight);
  };
  for (int k = 0; k < static_cast<int>(items.size()); ++k) {
    while (hull.size() >= 2 && slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), k)) {
      hull.pop_back();
    }
    hull.push_back(k);
  }
  return hull;
}

double score_of(const Sites& sites, const std::vector<int>& picked) {
  double sum = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    sum += sites[i][picked[i]].score;
  }
  return sum;
}

// Spends what is left of the capacity on the single changes that gain most, until none fits.
void fill_room(const Sites& sites, std::int64_t room, std::vector<int>* picked) {
  while (room > 0) {
    int best_site = -1;
    int best_item = 0;
    double best_gain = 0;
    for (std::size_t i = 0; i < sites.size(); ++i) {
      const Item& now = sites[i][(*picked)[i]];
      for (std::size_t k = (*picked)[i] + 1; k < sites[i].size(); ++k) {
        if (sites[i][k].weight - now.weight > room) {
          break;
        }
        if (now.score - sites[i][k].score > best_gain) {
          best_gain = now.score - sites[i][k].score;
          best_site = static_cast<int>(i);
          best_item = static_cast<int>(k);
        }
      }
    }
    if (best_site < 0) {
      return;
    }
    room -= sites[best_site][best_item].weight - sites[best_site][(*picked)[best_site]].weight;
    (*picked)[best_site] = best_item;
  }
}

}  // namespace

std::vector<HullStep> hull_steps(const Sites& sites) {
  std::vector<HullStep> steps;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const std::vector<int> hull = lower_hull(sites[i]);
    for (std::size_t h = 0; h + 1 < hull.size(); ++h) {
      const Item& a = sites[i][hull[h]];
      const Item& b = sites[i][hull[h + 1]];
      const std::int64_t weight = b.weight - a.weight;
      steps.push_back({static_cast<int>(i), hull[h], hull[h + 1], weight,
                       (a.score - b.score) / static_cast<double>(weight)});
    }
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const HullStep& a, const HullStep& b) { return a.slope > b.slope; });
  return steps;
}

Relaxation relax(const Sites& sites, std::int64_t capacity) {
  Relaxation result;
  result.rounded.assign(sites.size(), 0);
  std::int64_t room = capacity;
  for (const HullStep& step : hull_steps(sites)) {
    if (step.weight > room) {
      result.multiplier = step.slope;
      break;
    }
    room -= step.weight;
    result.rounded[step.site] = step.to;
  }
  fill_room(sites, room, &result.rounded);
  result.upper_bound = score_of(sites, result.rounded);
  long double bound = -static_cast<long double>(result.multiplier) * capacity;
  for (const auto& items : sites) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const Item& item : items) {
      lowest = std::min(lowest, item.score + result.multiplier * static_cast<double>(item.weight));
    }
    result.site_bound.push_back(lowest);
    bound += lowest;
  }
  // Bounds are differences of λ·capacity and of sums as large as that.
  result.rounding =
      1e-14 * (result.upper_bound + result.multiplier * static_cast<double>(capacity));
  result.lower_bound = std::max(0.0, static_cast<double>(bound) - result.rounding);
  return result;
}

Sites fix_by_reduced_cost(const Sites& sites, std::int64_t capacity, const Relaxation& relaxation,
                          double limit) {
  const double allowance = limit - relaxation.lower_bound + 2 * relaxation.rounding;
  Sites kept(sites.size());
  for (std::size_t i = 0; i < sites.size(); ++i) {
    for (const Item& item : sites[i]) {
      const double reduced_cost = item.score +
                                  relaxation.multiplier * static_cast<double>(item.weight) -
                                  relaxation.site_bound[i];
      if (item.weight <= capacity && reduced_cost <= allowance && item.score <= limit) {
        kept[i].push_back(item);
      }
    }
  }
  return kept;
}

}  // namespace bitalloc
