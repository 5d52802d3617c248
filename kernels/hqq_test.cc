// Against hqq's own Quantizer on a CPU (tests/oracle/make_int_formats.py), and what must hold for
// any values.
#include "kernels/hqq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/oracle_cases.h"

namespace bitalloc {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct HqqCase {
  std::string name, solver;
  int bits = 0, group = 0, axis = 0;
  int64_t values = 0, groups = 0, input = 0, codes = 0, scales = 0, zeros = 0;

  HqqOptions options() const {
    return {bits, group, axis == 1 ? HqqAxis::kContiguous : HqqAxis::kStrided,
            solver == "v2" ? HqqSolver::kV2 : HqqSolver::kLegacy, 20};
  }
};

std::vector<HqqCase> hqq_cases() {
  std::ifstream file(oracle_path("hqq_cases.txt"));
  std::vector<HqqCase> cases;
  HqqCase c;
  while (file >> c.name >> c.bits >> c.group >> c.axis >> c.solver >> c.values >> c.groups >>
         c.input >> c.codes >> c.scales >> c.zeros) {
    cases.push_back(c);
  }
  return cases;
}

// Means are summed in double here, in float32 vectors there: a value at a tie may fall to the other
// side, and 20 steps later its group's zero is another.
constexpr int64_t kMostTies = 2;  // of a case's 1,536 codes

TEST(Hqq, EqualsThePackage) {
  const auto cases = hqq_cases();
  ASSERT_GE(cases.size(), 100u);
  int64_t ties = 0, codes = 0;
  for (const HqqCase& c : cases) {
    const std::string what = c.name + " " + std::to_string(c.bits) + " bits group " +
                             std::to_string(c.group) + " axis " + std::to_string(c.axis) + " " +
                             c.solver;
    const auto tensor =
        hqq_quantize(read_tensor<float>("hqq_cases", c.input, c.values), c.options());
    ASSERT_TRUE(tensor.ok()) << what;
    const auto wanted = read_tensor<uint8_t>("hqq_cases", c.codes, c.values);
    int64_t differing = 0;
    for (int64_t i = 0; i < c.values; ++i) {
      const int apart = std::abs(int{tensor->codes[i]} - int{wanted[i]});
      EXPECT_LE(apart, 1) << what << " value " << i;
      differing += apart;
    }
    EXPECT_LE(differing, kMostTies) << what;
    ties += differing;
    codes += c.values;
    const auto scales = read_tensor<float>("hqq_cases", c.scales, c.groups);
    const auto zeros = read_tensor<float>("hqq_cases", c.zeros, c.groups);
    ASSERT_EQ(tensor->scales.size(), scales.size()) << what;
    for (int64_t g = 0; g < c.groups; ++g) {
      EXPECT_NEAR(tensor->scales[g], scales[g], 1e-6f * std::abs(scales[g])) << what;
      EXPECT_NEAR(tensor->zeros[g], zeros[g], 1e-6f * std::max(1.0f, std::abs(zeros[g]))) << what;
    }
  }
  std::printf("%ld of %ld codes differ by one\n", static_cast<long>(ties),
              static_cast<long>(codes));
}

std::vector<float> normal_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

TEST(Hqq, DequantizesByItsFormula) {
  // By hand: range 2, S = 1/2, z = 1/2, codes round(±1/2 + 1/2), no error to shrink.
  const auto tensor = hqq_quantize(std::vector<float>{-1, 1}, {1, 2});
  ASSERT_TRUE(tensor.ok());
  EXPECT_THAT(tensor->codes, testing::ElementsAre(0, 1));
  EXPECT_THAT(tensor->scales, testing::ElementsAre(2.0f));
  EXPECT_THAT(tensor->zeros, testing::ElementsAre(0.5f));
  EXPECT_THAT(hqq_dequantize(*tensor), testing::ElementsAre(-1, 1));
}

TEST(Hqq, SpecialValuesStayInTheirGroup) {
  for (const HqqAxis axis : {HqqAxis::kContiguous, HqqAxis::kStrided}) {
    for (const float special : {kNan, kInfinity, -kInfinity}) {
      auto values = normal_values(256, 1);
      values[70] = special;  // group 2 of 32 neighbours; with stride 8, group 6
      const auto tensor = hqq_quantize(values, {4, 32, axis});
      ASSERT_TRUE(tensor.ok());
      const auto out = hqq_dequantize(*tensor);
      for (size_t i = 0; i < values.size(); ++i) {
        const bool own = axis == HqqAxis::kContiguous ? i / 32 == 2 : i % 8 == 6;
        EXPECT_EQ(std::isnan(out[i]), own) << i;
      }
    }
  }
}

TEST(Hqq, FiniteValuesStayFinite) {
  const float largest = std::numeric_limits<float>::max();
  for (const int bits : {1, 2, 3, 4, 8}) {
    for (const float scale : {0.0f, 1e-42f, 1e-20f, 1e-4f, 1e10f, largest / 8}) {
      auto values = normal_values(128, 2);
      for (float& x : values) x = std::clamp(x, -3.0f, 3.0f) * scale;
      const auto tensor = hqq_quantize(values, {bits, 64});
      ASSERT_TRUE(tensor.ok());
      EXPECT_THAT(hqq_dequantize(*tensor),
                  testing::Each(testing::Truly([](float x) { return std::isfinite(x); })))
          << bits << " bits, scale " << scale;
    }
  }
  // A range that float32 does not hold.
  const auto wide = hqq_quantize(std::vector<float>{-largest, largest}, {4, 2});
  ASSERT_TRUE(wide.ok());
  EXPECT_THAT(hqq_dequantize(*wide), testing::Each(testing::IsNan()));
}

TEST(Hqq, ErrorsStayWithinTwoSteps) {
  // The zero moves by less than a step where no values are far out.
  for (const int bits : {2, 3, 4, 8}) {
    std::mt19937 random(bits);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(512);
    for (float& x : values) x = uniform(random);
    const auto tensor = hqq_quantize(values, {bits, 64});
    ASSERT_TRUE(tensor.ok());
    const auto out = hqq_dequantize(*tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(out[i] - values[i]), 2 * tensor->scales[i / 64]);
    }
  }
}

TEST(Hqq, RefusesWrongOptionsByName) {
  const auto values = normal_values(96, 3);
  const auto field = [&](const HqqOptions& options) {
    const auto tensor = hqq_quantize(values, options);
    return tensor.ok() ? std::string() : tensor.error().field;
  };
  EXPECT_EQ(field({5, 32}), "bits");
  EXPECT_EQ(field({4, 0}), "group");
  EXPECT_EQ(field({4, 64}), "values");
  EXPECT_EQ(field({4, 32, HqqAxis::kContiguous, HqqSolver::kV2, 0}), "iterations");
}

}  // namespace
}  // namespace bitalloc
