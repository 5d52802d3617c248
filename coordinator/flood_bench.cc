// What strangers cost: a search by fake workers over keyed doors, alone and while connections that
// must be refused keep coming. Prints seconds of both and their ratio. Strangers and service share
// this machine's cores, so the strangers' own work (half of them do real cryptography) counts, too.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>

#include "common/process_usage.h"
#include "tests/process/fake_worker.h"
#include "tests/process/fake_worker_service.h"
#include "tests/process/locked_service.h"

namespace bitalloc::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  int connections = 10'000;
  int repetitions = 3;
  int workers = 4;
  int unit_ms = 20;
  int rows = 100;
  int sequences = 80;  // two a batch: rows × sequences / 2 units
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options) {
    worker_keys_ = keys_.add(KeyRole::kWorker, "worker");
    redis_ = start_redis(dir_);
    coordinator_ = start_coordinator(dir_, keys_.flags(client_port_, worker_port_));
    for (int i = 0; i < options_.workers; ++i) {
      FakeWorkerOptions worker;
      worker.endpoint = tcp_endpoint(worker_port_);
      worker.epoch = fmt::format("worker-{}", i);
      worker.keys = worker_keys_;
      worker.unit_ms = options_.unit_ms;
      workers_.push_back(std::make_unique<FakeWorker>(worker));
    }
  }

  // Seconds of a whole search; half of the connections at either door.
  double run(int connections) {
    const SmallSearch search = small_search(options_.rows, options_.sequences);
    const std::string id = fmt::format("s{}", ++searches_);
    std::vector<std::unique_ptr<Flood>> floods;
    for (const int port : {client_port_, worker_port_}) {
      if (connections == 0) break;
      floods.push_back(std::make_unique<Flood>(
          FloodOptions{port, connections / 2, worker_keys_.server_public_key}));
    }
    const auto start = Clock::now();
    const auto reply =
        call(dir_, "submit", {{"id", id}, {"spec", to_json(search.spec)}}, search.blobs(), 60'000);
    BA_CHECK(reply.ok(), reply.ok() ? "" : reply.error().message);
    const Json status = wait_for_state(dir_, id, "done", 600'000);
    BA_CHECK(status["state"] == "done", "the search did not end");
    const double seconds = seconds_since(start);
    made_ = 0;
    for (const auto& flood : floods) made_ += flood->made();
    BA_CHECK(call(dir_, "delete", {{"id", id}}, {}, 60'000).ok(), "delete");
    return seconds;
  }

  int made() const { return made_; }  // connections during the last search
  int64_t coordinator_bytes() const { return resident_bytes(coordinator_.pid()); }

 private:
  const BenchOptions options_;
  TempDir dir_;
  KeyRing keys_{dir_};
  int client_port_ = free_port();
  int worker_port_ = free_port();
  CurveClient worker_keys_;
  Child redis_;
  Child coordinator_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  int searches_ = 0;
  int made_ = 0;
};

int run(const BenchOptions& options) {
  Bench bench(options);
  bench.run(0);  // warm
  std::vector<double> alone;
  std::vector<double> flooded;
  fmt::print("{:>4} {:>9} {:>11} {:>12} {:>6} {:>8}\n", "run", "alone s", "flooded s",
             "connections", "ratio", "RSS MiB");
  for (int i = 0; i < options.repetitions; ++i) {
    alone.push_back(bench.run(0));
    flooded.push_back(bench.run(options.connections));
    fmt::print("{:>4} {:>9.2f} {:>11.2f} {:>12} {:>6.3f} {:>8.1f}\n", i + 1, alone.back(),
               flooded.back(), bench.made(), flooded.back() / alone.back(),
               static_cast<double>(bench.coordinator_bytes()) / (1 << 20));
  }
  fmt::print("median ratio {:.3f} ({} units, {} workers of {} ms a unit)\n",
             median(flooded) / median(alone), options.rows * options.sequences / 2, options.workers,
             options.unit_ms);
  return 0;
}

}  // namespace
}  // namespace bitalloc::testing

int main(int argc, char** argv) {
  bitalloc::testing::BenchOptions options;
  CLI::App app{"A search alone, and under connections that are refused."};
  app.add_option("--connections", options.connections)->capture_default_str();
  app.add_option("--repetitions", options.repetitions)->capture_default_str();
  app.add_option("--workers", options.workers)->capture_default_str();
  app.add_option("--unit-ms", options.unit_ms)->capture_default_str();
  app.add_option("--rows", options.rows, "units = rows * sequences / 2")->capture_default_str();
  app.add_option("--sequences", options.sequences)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return bitalloc::testing::run(options);
}
