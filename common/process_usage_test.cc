// This process looks at itself.
#include "common/process_usage.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace bitalloc {
namespace {

constexpr pid_t kNobody = 1 << 30;  // beyond the largest id that Linux gives

TEST(ProcessUsage, ResidentBytesGrowByWhatIsTouched) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  const int64_t before = resident_bytes(::getpid());
  const std::vector<char> touched(kBytes, 'x');
  EXPECT_GE(resident_bytes(::getpid()), before + kBytes * 9 / 10);
  EXPECT_EQ(touched.back(), 'x');
  EXPECT_EQ(resident_bytes(kNobody), 0);
}

TEST(ProcessUsage, CountsDescriptors) {
  const int before = count_descriptors(::getpid());
  const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(count_descriptors(::getpid()), before + 1);
  ::close(descriptor);
  EXPECT_EQ(count_descriptors(::getpid()), before);
  EXPECT_EQ(count_descriptors(kNobody), 0);
}

TEST(ProcessUsage, CpuSecondsAreThoseOfTheSystemsOwnAccount) {
  rusage usage = {};
  do {  // the account in /proc counts in hundredths of a second
    ASSERT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  } while (usage.ru_utime.tv_sec == 0 && usage.ru_utime.tv_usec < 100'000);
  EXPECT_GE(cpu_seconds(::getpid()), 0.08);
  EXPECT_EQ(cpu_seconds(kNobody), 0);
}

TEST(ProcessUsage, DescriptorLimitIsRaisedToWhatTheSystemAllows) {
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low = {limit.rlim_max / 2, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  ASSERT_TRUE(raise_descriptor_limit().ok());
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

}  // namespace
}  // namespace bitalloc
