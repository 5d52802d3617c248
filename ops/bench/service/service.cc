#include "ops/bench/service/service.h"

#include <chrono>
#include <csignal>

#include "common/wire.h"

namespace bitalloc::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kStartMs = 300'000;  // with a million results in Redis, on a busy machine
constexpr int kCallMs = 60'000;
constexpr milliseconds kAskEvery{20};
constexpr milliseconds kWatchAgain{5'000};

}  // namespace

Status Service::start() {
  redis_ = testing::start_redis(dir_);
  return start_coordinator(false);
}

Status Service::restart_coordinator() {
  coordinator_.signal(SIGKILL);
  coordinator_.wait();
  return start_coordinator(true);
}

RedisAddress Service::redis_address() const {
  return *parse_redis_address(testing::redis_address(dir_));
}

Status Service::start_coordinator(bool take_over) {
  std::vector<std::string> command = {coordinator_program_,           "--redis",
                                      testing::redis_address(dir_),   "--client-endpoint",
                                      testing::client_endpoint(dir_), "--worker-endpoint",
                                      testing::worker_endpoint(dir_)};
  if (take_over) command.push_back("--take-over");
  coordinator_ = testing::Child(command, dir_.path("coordinator.log"));
  const auto end = Clock::now() + milliseconds(kStartMs);
  while (Clock::now() < end && !coordinator_.wait_for(1)) {
    const auto info = testing::call(dir_, "info", Json::object(), {}, 2'000);
    if (info.ok() && info->header.at("pid") == coordinator_.pid()) return {};
  }
  return unavailable("the coordinator does not answer", "", "see " + dir_.path("coordinator.log"));
}

// ---- feeder -------------------------------------------------------------------------------------

Feeder::Feeder(const testing::TempDir& dir, const LoadSearch& search,
               std::function<int64_t()> acknowledged, int64_t ahead)
    : dir_(dir),
      search_(search),
      acknowledged_(std::move(acknowledged)),
      ahead_(ahead),
      thread_([this] { run(); }) {}

Feeder::~Feeder() {
  stop_ = true;
  thread_.join();
}

std::string Feeder::id_of(int64_t index) { return fmt::format("load-{:05}", index); }

std::string Feeder::last_id() const { return id_of(std::max<int64_t>(0, searches_ - 1)); }

std::string Feeder::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Feeder::run() {
  const int64_t units = std::ssize(search_.units);
  while (!stop_) {
    if (searches_ * units - acknowledged_() >= ahead_) {
      std::this_thread::sleep_for(milliseconds(5));
      continue;
    }
    const auto submitted =
        testing::call(dir_, "submit", {{"id", id_of(searches_)}, {"spec", to_json(search_.spec)}},
                      search_.blobs, kCallMs);
    if (!submitted.ok()) {
      const std::lock_guard lock(mutex_);
      failure_ = "submit: " + submitted.error().message;
      return;
    }
    ++searches_;
  }
}

// ---- prober -------------------------------------------------------------------------------------

Prober::Prober(const testing::TempDir& dir, const Feeder& feeder)
    : dir_(dir), feeder_(feeder), asking_([this] { ask(); }), watching_([this] { watch(); }) {}

Prober::~Prober() {
  stop_ = true;
  asking_.join();
  watching_.join();
}

void Prober::ask() {
  ZmqContext context;
  Socket socket(context, Socket::Kind::kDealer);
  BA_CHECK(socket.connect(testing::client_endpoint(dir_)).ok(), "cannot connect");
  while (!stop_) {
    const auto sent = Clock::now();
    const Status asked = socket.send({"status", "s", {{"id", feeder_.last_id()}}, {}});
    const bool answered = asked.ok() && *socket.wait(kCallMs) && socket.receive().ok();
    if (answered) {
      status_ms_.add(std::chrono::duration<double, std::milli>(Clock::now() - sent).count());
    }
    std::this_thread::sleep_until(sent + kAskEvery);
  }
}

void Prober::watch() {
  ZmqContext context;
  Socket socket(context, Socket::Kind::kDealer);
  BA_CHECK(socket.connect(testing::client_endpoint(dir_)).ok(), "cannot connect");
  Clock::time_point next_watch;
  Clock::time_point last_event = Clock::now();
  while (!stop_) {
    if (Clock::now() >= next_watch) {
      const Status asked = socket.send({"watch", "w", {{"id", feeder_.last_id()}}, {}});
      if (asked.ok()) next_watch = Clock::now() + kWatchAgain;
      last_event = Clock::now();
    }
    if (!*socket.wait(50)) continue;
    const auto received = socket.receive();
    if (!received.ok() || !received->has_value()) continue;
    const auto now = Clock::now();
    if ((*received)->message.type == "event") {
      watch_gap_ms_.add(std::chrono::duration<double, std::milli>(now - last_event).count());
    } else {
      next_watch = now + milliseconds(50);  // the search has ended: the next one
    }
    last_event = now;
  }
}

}  // namespace bitalloc::bench
