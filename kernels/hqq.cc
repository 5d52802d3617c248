#include "kernels/hqq.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/formats/text.h"

namespace bitalloc {
namespace {

constexpr double kNorm = 0.7;
constexpr double kBeta = 10;
constexpr double kKappa = 1.01;
constexpr float kSmallestRange = 1e-4f;
constexpr float kLargestScale = 2e4f;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A group's solution so far; `scale` is hqq's S, a factor.
struct Group {
  float scale = kNan;
  float zero = kNan;
  bool finite = false;
};

// Where the values of group g lie: first + k·step.
struct Layout {
  size_t groups, size, step;
  bool contiguous;
  size_t at(size_t group, size_t k) const { return (contiguous ? group * size : group) + k * step; }
};

Layout layout_of(size_t count, const HqqOptions& options) {
  const auto size = static_cast<size_t>(options.group);
  const size_t groups = count / size;
  const bool contiguous = options.axis == HqqAxis::kContiguous;
  return {groups, size, contiguous ? 1 : groups, contiguous};
}

float code_of(float value, const Group& group, float levels) {
  return std::clamp(std::nearbyint(value * group.scale + group.zero), 0.0f, levels);
}

// hqq's shrink_lp_op, in its order of roundings.
float shrunk(float error, float inverse_beta) {
  const float magnitude = std::abs(error);
  const float less = inverse_beta * std::pow(magnitude, static_cast<float>(kNorm - 1));
  const float left = std::max(magnitude - less, 0.0f);
  return error < 0 ? -left : error > 0 ? left : 0.0f;
}

class Solver {
 public:
  Solver(std::span<const float> values, const HqqOptions& options)
      : values_(values),
        options_(options),
        layout_(layout_of(values.size(), options)),
        levels_(static_cast<float>((1 << options.bits) - 1)) {
    for (size_t g = 0; g < layout_.groups; ++g) groups_.push_back(start(g));
  }

  HqqTensor solve() {
    options_.solver == HqqSolver::kLegacy ? solve_legacy() : solve_v2();
    return result();
  }

 private:
  Group start(size_t g) const {
    float lo = values_[layout_.at(g, 0)], hi = lo;
    bool finite = true;
    for (size_t k = 0; k < layout_.size; ++k) {
      const float value = values_[layout_.at(g, k)];
      finite = finite && std::isfinite(value);
      lo = std::min(lo, value);
      hi = std::max(hi, value);
    }
    const float range = hi - lo;
    if (!finite || !std::isfinite(range)) return {};
    const float scale = std::min(range <= kSmallestRange ? 1.0f : levels_ / range, kLargestScale);
    return {scale, -lo * scale, true};
  }

  // The mean of |r| under `groups_`, and in `next_` the groups after a step.
  float step(double beta) {
    const auto inverse_beta = static_cast<float>(1 / beta);
    double errors = 0;
    size_t counted = 0;
    next_ = groups_;
    for (size_t g = 0; g < layout_.groups; ++g) {
      const Group& group = groups_[g];
      if (!group.finite) continue;
      double zeros = 0;
      for (size_t k = 0; k < layout_.size; ++k) {
        const float value = values_[layout_.at(g, k)];
        const float code = code_of(value, group, levels_);
        const float error = value - (code - group.zero) / group.scale;
        errors += std::abs(error);
        zeros += code - (value - shrunk(error, inverse_beta)) * group.scale;
      }
      counted += layout_.size;
      next_[g].zero = static_cast<float>(zeros / static_cast<double>(layout_.size));
    }
    return static_cast<float>(errors / static_cast<double>(std::max<size_t>(counted, 1)));
  }

  void solve_legacy() {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < options_.iterations; ++i) {
      const float error = step(kBeta);
      groups_.swap(next_);
      if (!(error < best)) return;
      best = error;
    }
  }

  void solve_v2() {
    float best = std::numeric_limits<float>::infinity();
    double beta = kBeta;
    std::vector<Group> kept = groups_;
    for (int i = 0; i < options_.iterations; ++i, beta *= kKappa) {
      const float error = step(beta);
      if (!(best - error > 0)) {
        groups_ = kept;
        return;
      }
      best = error;
      kept = groups_;
      groups_.swap(next_);
    }
  }

  HqqTensor result() const {
    HqqTensor tensor{options_, std::vector<uint8_t>(values_.size()), {}, {}};
    for (size_t g = 0; g < layout_.groups; ++g) {
      const Group& group = groups_[g];
      tensor.scales.push_back(1.0f / group.scale);
      tensor.zeros.push_back(group.zero);
      if (!group.finite) continue;
      for (size_t k = 0; k < layout_.size; ++k) {
        const size_t i = layout_.at(g, k);
        tensor.codes[i] = static_cast<uint8_t>(code_of(values_[i], group, levels_));
      }
    }
    return tensor;
  }

  std::span<const float> values_;
  HqqOptions options_;
  Layout layout_;
  float levels_;
  std::vector<Group> groups_, next_;
};

}  // namespace

Result<HqqTensor> hqq_quantize(std::span<const float> values, const HqqOptions& options) {
  constexpr int kBits[] = {1, 2, 3, 4, 8};
  if (std::ranges::find(kBits, options.bits) == std::end(kBits)) {
    return invalid_argument(concat("hqq has 1, 2, 3, 4 or 8 bits, not ", options.bits), "bits");
  }
  if (options.group < 1) {
    return invalid_argument(concat("a group has at least 1 value, not ", options.group), "group");
  }
  if (options.iterations < 1) {
    return invalid_argument(concat("hqq wants at least 1 iteration, not ", options.iterations),
                            "iterations");
  }
  if (values.size() % static_cast<size_t>(options.group) != 0) {
    return invalid_argument(
        concat(values.size(), " values are no multiple of the group of ", options.group), "values");
  }
  return Solver(values, options).solve();
}

std::vector<float> hqq_dequantize(const HqqTensor& tensor) {
  const Layout layout = layout_of(tensor.codes.size(), tensor.options);
  std::vector<float> values(tensor.codes.size());
  for (size_t g = 0; g < layout.groups; ++g) {
    for (size_t k = 0; k < layout.size; ++k) {
      const size_t i = layout.at(g, k);
      values[i] = (static_cast<float>(tensor.codes[i]) - tensor.zeros[g]) * tensor.scales[g];
    }
  }
  return values;
}

}  // namespace bitalloc
