#include "ops/bench/service/rivals.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "ops/bench/service/latencies.h"

namespace bitalloc::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTimeoutMs = 10'000;

// Runs `commit`, which does `changes` changes, until the time is over.
template <typename Commit>
Result<Json> repeat(double seconds, size_t changes, Commit commit) {
  std::vector<float> times;
  const auto begin = Clock::now();
  std::chrono::duration<double> passed{0};
  while (passed.count() < seconds) {
    const auto start = Clock::now();
    BA_RETURN_IF_ERROR(commit());
    const auto end = Clock::now();
    times.push_back(std::chrono::duration<float, std::milli>(end - start).count());
    passed = end - begin;
  }
  const double total = static_cast<double>(times.size() * changes);
  Json row = quantiles(std::move(times));
  row["per_second"] = total / passed.count();
  row["changes_a_commit"] = changes;
  return row;
}

}  // namespace

Result<Json> disk_alone(const std::string& directory, size_t payload_bytes, double seconds) {
  const std::string file = directory + "/disk_alone";
  const int fd = ::open(file.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return unavailable("cannot write " + file);
  const std::string payload(payload_bytes, 'x');
  Result<Json> row = repeat(seconds, 1, [&]() -> Status {
    if (::write(fd, payload.data(), payload.size()) != std::ssize(payload) ||
        ::fdatasync(fd) != 0) {
      return unavailable("cannot write " + file);
    }
    return {};
  });
  ::close(fd);
  ::unlink(file.c_str());
  return row;
}

Result<Json> redis_alone(const RedisAddress& address, size_t payload_bytes, size_t pipeline,
                         double seconds) {
  RedisConnection redis;
  BA_RETURN_IF_ERROR(redis.connect(address, kTimeoutMs));
  const std::string payload(payload_bytes, 'x');
  size_t next = 0;
  return repeat(seconds, pipeline, [&]() -> Status {
    for (size_t i = 0; i < pipeline; ++i) {
      BA_RETURN_IF_ERROR(redis.append({"SET", fmt::format("alone:{}", next++), payload}));
    }
    for (size_t i = 0; i < pipeline; ++i) {
      BA_ASSIGN_OR_RETURN(const RedisReply reply, redis.read());
      if (reply.is_error()) return unavailable("Redis: " + reply.text());
    }
    return {};
  });
}

}  // namespace bitalloc::bench
