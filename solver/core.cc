#include "solver/core.h"

#include <algorithm>
#include <cmath>

namespace bitalloc {
namespace {

struct WeightScale {
  std::int64_t room = 0;  // capacity left after the decided sites
  double factor = 1;      // CBC's weight of one unit
};

WeightScale weight_scale(const Sites& sites, std::int64_t capacity) {
  constexpr double kLargest = 0x1p20;  // well inside what CBC's feasibility tolerance resolves
  WeightScale scale{capacity};
  std::int64_t heaviest = 1;
  for (const auto& items : sites) {
    if (items.size() == 1) {
      scale.room -= items[0].weight;
    } else {
      heaviest = std::max(heaviest, items.back().weight);
    }
  }
  if (static_cast<double>(heaviest) > kLargest) {
    scale.factor = kLargest / static_cast<double>(heaviest);
  }
  return scale;
}

int add_column(BinaryProgram* program, double cost, double upper, bool integral) {
  program->cost.push_back(cost);
  program->upper.push_back(upper);
  program->integral.push_back(integral);
  return static_cast<int>(program->cost.size()) - 1;
}

}  // namespace

Core make_core(const Sites& sites, std::int64_t capacity, const Relaxation& relaxation,
               double gap) {
  Core core;
  const double scale = kCoreScale / gap;
  const WeightScale weights = weight_scale(sites, capacity);
  LinearRow budget;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    core.columns.emplace_back(sites[i].size(), -1);
    if (sites[i].size() == 1) {
      continue;
    }
    LinearRow one{{}, {}, 1, 1};
    for (std::size_t k = 0; k < sites[i].size(); ++k) {
      const Item& item = sites[i][k];
      const double weight = static_cast<double>(item.weight);
      const double reduced_cost =
          std::max(0.0, item.score + relaxation.multiplier * weight - relaxation.site_bound[i]);
      const int column = add_column(&core.program, reduced_cost * scale, 1, true);
      core.columns[i][k] = column;
      one.columns.push_back(column);
      one.coefficients.push_back(1);
      budget.columns.push_back(column);
      budget.coefficients.push_back(weight * weights.factor);
    }
    core.program.rows.push_back(std::move(one));
  }
  if (core.program.cost.empty()) {
    return core;
  }
  const double room = static_cast<double>(weights.room) * weights.factor;
  budget.columns.push_back(add_column(&core.program, relaxation.multiplier / weights.factor * scale,
                                      std::max(room, 0.0), false));
  budget.coefficients.push_back(1);
  budget.lower = budget.upper = room;
  core.program.rows.push_back(std::move(budget));
  return core;
}

std::vector<double> to_columns(const Core& core, const Sites& sites, std::int64_t capacity,
                               const std::vector<int>& picked) {
  std::vector<double> x(core.program.cost.size(), 0.0);
  std::int64_t weight = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    weight += sites[i][picked[i]].weight;
    if (const int column = core.columns[i][picked[i]]; column >= 0) {
      x[column] = 1;
    }
  }
  if (!x.empty()) {
    x.back() = static_cast<double>(capacity - weight) * weight_scale(sites, capacity).factor;
  }
  return x;
}

std::optional<std::vector<int>> from_columns(const Core& core, const Sites& sites,
                                             std::int64_t capacity, const std::vector<double>& x) {
  std::vector<int> picked(sites.size(), 0);
  std::int64_t weight = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    int chosen = 0;
    if (sites[i].size() > 1) {
      const auto one = [&](int column) { return std::fabs(x[column] - 1) < 1e-6; };
      const auto& columns = core.columns[i];
      if (std::count_if(columns.begin(), columns.end(), one) != 1) {
        return std::nullopt;
      }
      chosen =
          static_cast<int>(std::find_if(columns.begin(), columns.end(), one) - columns.begin());
    }
    picked[i] = chosen;
    weight += sites[i][chosen].weight;
  }
  if (weight > capacity) {
    return std::nullopt;
  }
  return picked;
}

}  // namespace bitalloc
