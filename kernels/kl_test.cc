// KL against 50-digit arithmetic (tests/oracle/formats_kl.txt) and long double.
#include "kernels/kl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kl_element.h"

namespace bitalloc {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The logits of make_formats.py, bit for bit.
uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  return x;
}

float uniform(uint32_t seed, uint32_t i) {
  const uint32_t h = mix(i + seed * 0x9E3779B9u);
  return static_cast<float>(h >> 8) * 0x1p-23f - 1.0f;
}

struct Logits {
  std::vector<float> a, b;
};

Logits make_logits(uint32_t seed, float spread, uint32_t vocab) {
  Logits logits;
  const uint32_t step = std::max(1u, vocab / 8);
  for (uint32_t i = 0; i < vocab; ++i) {
    float a = uniform(seed, i) * 6.0f;
    a = a * uniform(seed + 1, i);
    if (i % step == 0) a += 11.0f;
    const float moved = a + spread * uniform(seed + 2, i);
    logits.a.push_back(a);
    logits.b.push_back(moved + 0.375f);
  }
  return logits;
}

double kl_row(const std::vector<float>& a, const std::vector<float>& b) {
  const auto vocab = static_cast<int64_t>(a.size());
  double log_sum_exp = 0, kl = 0;
  log_sum_exp_cpu(a.data(), 1, vocab, vocab, &log_sum_exp);
  kl_rows_cpu(a.data(), b.data(), 1, vocab, vocab, vocab, &log_sum_exp, &kl);
  return kl;
}

// The textbook sum. Its cancellation, about 1e-18, is nothing beside the values it is used for.
long double kl_long_double(const std::vector<float>& a, const std::vector<float>& b) {
  long double sum_a = 0, sum_b = 0, kl = 0;
  for (float x : a) sum_a += std::exp(static_cast<long double>(x));
  for (float x : b) sum_b += std::exp(static_cast<long double>(x));
  for (size_t i = 0; i < a.size(); ++i) {
    const long double log_p = a[i] - std::log(sum_a);
    kl += std::exp(log_p) * (log_p - (b[i] - std::log(sum_b)));
  }
  return kl;
}

TEST(Kl, AgreesWithFiftyDigitArithmetic) {
  std::ifstream file(std::string(BITALLOC_SOURCE_DIR) + "/tests/oracle/formats_kl.txt");
  uint32_t seed = 0, vocab = 0;
  double spread = 0, expected = 0;
  int compared = 0;
  while (file >> seed >> spread >> vocab >> expected) {
    const Logits logits = make_logits(seed, static_cast<float>(spread), vocab);
    const double kl = kl_row(logits.a, logits.b);
    EXPECT_TRUE(std::abs(kl - expected) <= 2e-5 * expected)
        << "true KL " << expected << ", vocabulary " << vocab << ": " << kl << ", relative error "
        << (kl - expected) / expected;
    ++compared;
  }
  EXPECT_EQ(compared, 10);
}

TEST(Kl, AgreesWithLongDoubleOnEveryVocabularySizeAndSpread) {
  for (uint32_t vocab : {1u, 2u, 15u, 16u, 17u, 33u, 1023u, 1024u, 1025u, 5000u}) {
    for (float spread : {1e-3f, 0.1f, 0.4f, 1.0f, 5.0f, 30.0f}) {
      const Logits logits = make_logits(vocab, spread, vocab);
      const auto expected = static_cast<double>(kl_long_double(logits.a, logits.b));
      EXPECT_TRUE(std::abs(kl_row(logits.a, logits.b) - expected) <= 2e-5 * expected + 1e-18)
          << "vocabulary " << vocab << ", spread " << spread << ": " << kl_row(logits.a, logits.b)
          << ", expected " << expected;
    }
  }
}

TEST(Kl, IsZeroForTheSameLogitsAndForShiftedOnes) {
  const Logits logits = make_logits(3, 0.0f, 4097);  // b = a + 0.375, rounded
  EXPECT_EQ(kl_row(logits.a, logits.a), 0);
  auto exact = logits.a;
  for (float& x : exact) x = std::round(x * 64) / 64;
  auto shifted = exact;
  for (float& x : shifted) x += 8;  // exact in float32
  EXPECT_TRUE(std::abs(kl_row(exact, shifted)) <= 1e-15);
}

// A shift of all logits changes nothing, however far they are from zero.
TEST(Kl, DoesNotDependOnTheLogitsOffset) {
  std::vector<float> a, b;
  for (uint32_t i = 0; i < 3000; ++i) {
    a.push_back(std::round(uniform(1, i) * 512) / 64);
    b.push_back(a.back() + std::round(uniform(2, i) * 32) / 64);
  }
  const double kl = kl_row(a, b);
  EXPECT_GT(kl, 0.01);
  for (float offset : {-1000.0f, 500.0f}) {
    auto moved_a = a, moved_b = b;
    for (float& x : moved_a) x += offset;
    for (float& x : moved_b) x -= offset;
    EXPECT_TRUE(std::abs(kl_row(moved_a, moved_b) - kl) <= 1e-4 * kl) << offset;
  }
}

TEST(Kl, TakesLimitsAtMinusInfinity) {
  // Masked on both sides: as if the entry were not there. softmax(0, ln 3) = (1/4, 3/4).
  const float log3 = std::log(3.0f);
  const double expected = 0.5 * std::log(0.5 / 0.25) + 0.5 * std::log(0.5 / 0.75);
  EXPECT_NEAR(kl_row({0, -kInfinity, 0}, {0, -kInfinity, log3}), expected, 1e-6);
  // p = 0 where q is not: p = (1/2, 1/2, 0), q = (1/3, 1/3, 1/3): KL = log(3/2).
  EXPECT_NEAR(kl_row({0, 0, -kInfinity}, {0, 0, 0}), std::log(1.5), 1e-6);
  EXPECT_EQ(kl_row({0, 0, 0}, {0, 0, -kInfinity}), static_cast<double>(kInfinity));
  EXPECT_TRUE(std::isnan(kl_row({-kInfinity, -kInfinity}, {0, 0})));
  EXPECT_TRUE(std::isnan(kl_row({0, 0}, {-kInfinity, -kInfinity})));
}

TEST(Kl, KeepsNanAndPlusInfinityVisible) {
  for (size_t vocab : {3u, 16u, 1500u}) {
    for (float bad : {kNan, kInfinity}) {
      for (size_t position : {size_t{0}, vocab / 2, vocab - 1}) {
        std::vector<float> good(vocab, 0.5f), spoilt(vocab, 0.5f);
        spoilt[position] = bad;
        EXPECT_TRUE(std::isnan(kl_row(spoilt, good))) << vocab << ' ' << position;
        EXPECT_TRUE(std::isnan(kl_row(good, spoilt))) << vocab << ' ' << position;
      }
    }
  }
}

// Where the trial is 100 nats surer of a token than the reference, p·e^d must not overflow.
TEST(Kl, SurvivesExtremeDisagreement) {
  std::vector<float> a(40, 0.0f), b(40, 0.0f);
  a[0] = 120;
  b[1] = 120;
  // p ~ (1, e^-120, …), q ~ (e^-120, 1, …): KL = 120 to within 1e-50.
  EXPECT_NEAR(kl_row(a, b), 120, 120 * 2e-5);
  b[1] = 400;
  EXPECT_NEAR(kl_row(a, b), 400, 400 * 2e-5);
}

TEST(Kl, RowsAreIndependentOfTheirNeighbours) {
  const int64_t rows = 3, vocab = 100, stride = 117;
  std::vector<float> a(rows * stride, kNan), b(rows * stride, kNan);
  std::vector<double> expected;
  for (int64_t row = 0; row < rows; ++row) {
    const Logits logits = make_logits(static_cast<uint32_t>(row), 0.3f, vocab);
    std::copy(logits.a.begin(), logits.a.end(), a.begin() + row * stride);
    std::copy(logits.b.begin(), logits.b.end(), b.begin() + row * stride);
    expected.push_back(kl_row(logits.a, logits.b));
  }
  std::vector<double> log_sum_exp(rows), kl(rows);
  log_sum_exp_cpu(a.data(), rows, vocab, stride, log_sum_exp.data());
  kl_rows_cpu(a.data(), b.data(), rows, vocab, stride, stride, log_sum_exp.data(), kl.data());
  EXPECT_EQ(kl, expected);
}

TEST(LogSumExp, AgreesWithLongDouble) {
  for (uint32_t vocab : {1u, 17u, 4099u, 50000u}) {
    const Logits logits = make_logits(vocab, 0.0f, vocab);
    long double sum = 0;
    for (float x : logits.a) sum += std::exp(static_cast<long double>(x));
    double actual = 0;
    log_sum_exp_cpu(logits.a.data(), 1, vocab, vocab, &actual);
    EXPECT_TRUE(std::abs(actual - static_cast<double>(std::log(sum))) <= 1e-6) << vocab;
  }
  const std::vector<float> far = {-kInfinity, -5000.0f, -5000.0f};
  double actual = 0;
  log_sum_exp_cpu(far.data(), 1, 3, 3, &actual);
  EXPECT_NEAR(actual, -5000 + std::log(2.0), 1e-9);
}

TEST(KlElement, ExponentialsAreAccurate) {
  for (int i = -870000; i <= 880000; ++i) {
    const float x = static_cast<float>(i) * 1e-4f;
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_TRUE(std::abs(exp_approximate(x) - exact) <=
                1e-6 * std::max(1.0, std::abs(x) / 8.0) * exact)
        << x;
    const double excess = std::expm1(static_cast<double>(x)) - static_cast<double>(x);
    ASSERT_TRUE(std::abs(exp_minus_1_minus_x(x) - excess) <= 1e-5 * excess) << x;
  }
  for (float x : {1e-3f, -1e-5f, 1e-7f, -1e-12f}) {
    // Taylor to third order: exact to x²/12.
    const double excess = static_cast<double>(x) * x * (0.5 + static_cast<double>(x) / 6);
    EXPECT_TRUE(std::abs(exp_minus_1_minus_x(x) - excess) <= 2e-7 * excess) << x;
  }
  EXPECT_EQ(exp_approximate(-88.0f), 0);
  EXPECT_EQ(exp_approximate(-kInfinity), 0);
  EXPECT_TRUE(std::isnan(exp_approximate(kNan)));
}

}  // namespace
}  // namespace bitalloc
