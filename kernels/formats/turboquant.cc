#include "kernels/formats/turboquant.h"

#include <algorithm>
#include <array>

namespace bitalloc {
namespace {

using Centroids = std::array<double, kTurboQuantMostLevels>;

double density(double x, double variance) {
  return std::exp(-x * x / (2 * variance)) / std::sqrt(2 * M_PI * variance);
}

template <typename F>
double trapezoids(F f, double a, double b) {
  constexpr int kSteps = 200;
  const double width = (b - a) / kSteps;
  double sum = 0.5 * (f(a) + f(b));
  for (int i = 1; i < kSteps; ++i) sum += f(a + i * width);
  return sum * width;
}

// The means of N(0, variance) between neighbours' midpoints; the outer cells end at ±edge.
Centroids lloyd_max_step(const Centroids& centroids, int levels, double variance, double edge) {
  Centroids next = centroids;
  for (int i = 0; i < levels; ++i) {
    const double a = i == 0 ? -edge : (centroids[i - 1] + centroids[i]) / 2;
    const double b = i == levels - 1 ? edge : (centroids[i] + centroids[i + 1]) / 2;
    const double moment = trapezoids([=](double x) { return x * density(x, variance); }, a, b);
    const double mass = trapezoids([=](double x) { return density(x, variance); }, a, b);
    if (mass > 1e-15) next[i] = moment / mass;
  }
  return next;
}

}  // namespace

TurboQuantKey turboquant_key(int head_dim, int bits, bool norm_correction) {
  constexpr int kMostSteps = 200;
  constexpr double kTolerance = 1e-10;
  const double variance = 1.0 / head_dim;
  const double high = 3.5 * std::sqrt(variance);
  TurboQuantKey key = {};
  key.levels = 1 << bits;
  key.norm_correction = norm_correction;
  Centroids centroids = {};
  for (int i = 0; i < key.levels; ++i) centroids[i] = -high + 2 * high * (i + 0.5) / key.levels;
  for (int step = 0; step < kMostSteps; ++step) {
    const Centroids next = lloyd_max_step(centroids, key.levels, variance, 3 * high);
    double moved = 0;
    for (int i = 0; i < key.levels; ++i) moved = std::max(moved, std::abs(next[i] - centroids[i]));
    if (moved < kTolerance) break;
    centroids = next;
  }
  for (int i = 0; i < key.levels; ++i) key.centroids[i] = static_cast<float>(centroids[i]);
  // Of the rounded centroids, in float32, as the engine's backend does.
  for (int i = 0; i + 1 < key.levels; ++i) {
    key.midpoints[i] = (key.centroids[i] + key.centroids[i + 1]) / 2;
  }
  return key;
}

}  // namespace bitalloc
