// bitalloc-service-bench: how many results a second the service acknowledges as durable, and how
// long each waits; beside what disk and Redis do alone, in the same run.
#include <sys/sysinfo.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <iostream>

#include "common/process_usage.h"
#include "ops/bench/service/durability.h"
#include "ops/bench/service/load_workers.h"
#include "ops/bench/service/rivals.h"
#include "ops/bench/service/service.h"

namespace bitalloc::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kDeepPipeline = 256;
constexpr int kCallMs = 120'000;

struct Options {
  int workers = 64;
  int credits = 8;
  double seconds = 8;
  double rate = 2'500;
  int64_t units_per_search = 2'100;
  int64_t memory_units = 1'000'000;
  std::string coordinator = BITALLOC_BINARY_DIR "/bin/bitalloc-coordinator";
  bool json = false;
  bool quick = false;
};

void add_flags(CLI::App& app, Options& options) {
  app.add_option("--workers", options.workers, "Fake workers")->capture_default_str();
  app.add_option("--credits", options.credits, "Units that a worker holds at most")
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Of each phase")->capture_default_str();
  app.add_option("--rate", options.rate, "Results a second of the third phase")
      ->capture_default_str();
  app.add_option("--units-per-search", options.units_per_search, "Of the searches under load")
      ->capture_default_str();
  app.add_option("--memory-units", options.memory_units,
                 "Units of the search that memory is measured with; 0: leave it out")
      ->capture_default_str();
  app.add_option("--coordinator", options.coordinator,
                 "Program to measure, e.g. that of an earlier release")
      ->capture_default_str();
  app.add_flag("--json", options.json, "One JSON document instead of the table");
  app.add_flag("--quick", options.quick,
               "No timing: results under load, kill -9 of the coordinator, and whether every "
               "acknowledged result is in Redis (exit code 1 if not)");
  app.footer("TMPDIR chooses the disk. Needs redis-server on the PATH.");
}

void say(const std::string& text) { fmt::print(stderr, "{}\n", text); }

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

Json machine(const std::string& directory) {
  constexpr decltype(std::declval<struct statfs>().f_type) kTmpfs = 0x01021994;
  struct statfs disk = {};
  ::statfs(directory.c_str(), &disk);
  double load[1] = {0};
  ::getloadavg(load, 1);
  return {{"cpu", cpu_name()},
          {"cores", ::get_nprocs()},
          {"memory_gib", ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE) >> 30},
          {"disk_is_memory", disk.f_type == kTmpfs},
          {"load_average_before", load[0]}};
}

size_t mean_result_bytes(const LoadSearch& search) {
  size_t bytes = 0;
  for (const UnitId& unit : search.units) bytes += load_result(search.spec, unit).size();
  return bytes / search.units.size();
}

// ---- rivals -------------------------------------------------------------------------------------

Result<Json> measure_rivals(size_t payload_bytes, double seconds) {
  const testing::TempDir dir;
  const testing::Child redis = testing::start_redis(dir);
  const RedisAddress address = *parse_redis_address(testing::redis_address(dir));
  Json rivals;
  BA_ASSIGN_OR_RETURN(rivals["disk"], disk_alone(dir.path(""), payload_bytes, seconds));
  BA_ASSIGN_OR_RETURN(rivals["redis_one_a_commit"],
                      redis_alone(address, payload_bytes, 1, seconds));
  BA_ASSIGN_OR_RETURN(rivals["redis_pipelined"],
                      redis_alone(address, payload_bytes, kDeepPipeline, seconds));
  return rivals;
}

// ---- load ---------------------------------------------------------------------------------------

// What a while of the present load gave.
Json measure_phase(const std::string& name, double seconds, const Service& service,
                   LoadWorkers& workers, Prober& prober) {
  sleep_seconds(std::min(1.0, seconds / 4));  // the phase before must not be in the numbers
  workers.take_ack_latencies();
  workers.take_heartbeat_latencies();
  prober.take_status_latencies();
  prober.take_watch_gaps();
  const int64_t before = workers.acknowledged();
  const int64_t starved = workers.starved();
  const double coordinator = cpu_seconds(service.coordinator_pid());
  const double redis = cpu_seconds(service.redis_pid());
  const double bench = cpu_seconds(::getpid());
  const auto start = Clock::now();
  sleep_seconds(seconds);
  const double passed = std::chrono::duration<double>(Clock::now() - start).count();
  const auto results = static_cast<double>(workers.acknowledged() - before);
  const auto share = [&](pid_t pid, double used) { return (cpu_seconds(pid) - used) / passed; };
  return {{"phase", name},
          {"results_per_second", results / passed},
          {"ack", workers.take_ack_latencies()},
          {"heartbeat", workers.take_heartbeat_latencies()},
          {"status", prober.take_status_latencies()},
          {"watch_gap", prober.take_watch_gaps()},
          {"starved", workers.starved() - starved},
          {"coordinator_cores", share(service.coordinator_pid(), coordinator)},
          {"redis_cores", share(service.redis_pid(), redis)},
          {"bench_cores", share(::getpid(), bench)},
          {"coordinator_rss_bytes", resident_bytes(service.coordinator_pid())}};
}

Result<int64_t> results_in_redis(const Service& service, int64_t searches) {
  RedisConnection redis;
  BA_RETURN_IF_ERROR(redis.connect(service.redis_address(), kCallMs));
  int64_t count = 0;
  for (int64_t i = 0; i < searches; ++i) {
    const std::string key = fmt::format("bitalloc:{{{}}}:results", Feeder::id_of(i));
    BA_ASSIGN_OR_RETURN(const RedisReply length, redis.command({"HLEN", key}));
    count += length.integer();
  }
  return count;
}

Result<Json> measure_load(const Options& options, const LoadSearch& search) {
  Service service(options.coordinator);
  BA_RETURN_IF_ERROR(service.start());
  LoadWorkers workers({testing::worker_endpoint(service.dir()), options.workers, options.credits},
                      search);
  const int64_t ahead =
      std::max<int64_t>(3 * std::ssize(search.units) / 2, 2 * options.workers * options.credits);
  Feeder feeder(
      service.dir(), search, [&] { return workers.acknowledged(); }, ahead);
  Prober prober(service.dir(), feeder);
  Json phases = Json::array();
  workers.saturate();
  sleep_seconds(options.seconds / 4);  // warm-up
  phases.push_back(measure_phase("saturated", options.seconds, service, workers, prober));
  const double peak = phases[0]["results_per_second"];
  workers.pace(peak / 2);
  phases.push_back(measure_phase("half of it", options.seconds, service, workers, prober));
  workers.pace(options.rate);
  phases.push_back(measure_phase(fmt::format("{:.0f}/s", options.rate), options.seconds, service,
                                 workers, prober));
  workers.hold();
  if (!feeder.failure().empty()) return unavailable(feeder.failure());
  sleep_seconds(0.5);
  const int64_t acknowledged = workers.acknowledged();
  BA_ASSIGN_OR_RETURN(const int64_t stored, results_in_redis(service, feeder.searches()));
  return Json{{"phases", phases},
              {"acknowledged", acknowledged},
              {"in_redis", stored},
              {"searches", feeder.searches()}};
}

// ---- memory -------------------------------------------------------------------------------------

// Writes every result straight into Redis, as if the search had run.
Status fill_results(const Service& service, const LoadSearch& search, const std::string& id) {
  constexpr size_t kAtOnce = 1'000;
  RedisConnection redis;
  BA_RETURN_IF_ERROR(redis.connect(service.redis_address(), kCallMs));
  std::vector<std::string> command;
  for (size_t i = 0; i < search.units.size(); ++i) {
    if (command.empty()) command = {"HSET", fmt::format("bitalloc:{{{}}}:results", id)};
    command.push_back(unit_name(search.units[i]));
    command.push_back(load_result(search.spec, search.units[i]));
    if (command.size() < 2 * kAtOnce && i + 1 < search.units.size()) continue;
    BA_ASSIGN_OR_RETURN(const RedisReply reply, redis.command(command));
    command.clear();
  }
  return {};
}

Result<Json> measure_memory(const Options& options) {
  const LoadSearch search = smallest_units_search(options.memory_units);
  Service service(options.coordinator);
  BA_RETURN_IF_ERROR(service.start());
  const int64_t empty = resident_bytes(service.coordinator_pid());
  auto start = Clock::now();
  BA_ASSIGN_OR_RETURN(
      const wire::Message submitted,
      testing::call(service.dir(), "submit", {{"id", "memory"}, {"spec", to_json(search.spec)}},
                    search.blobs, kCallMs));
  const double submit_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const int64_t pending = resident_bytes(service.coordinator_pid());
  BA_RETURN_IF_ERROR(fill_results(service, search, "memory"));
  start = Clock::now();
  BA_RETURN_IF_ERROR(service.restart_coordinator());
  const double restart_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const int64_t done = resident_bytes(service.coordinator_pid());
  const auto a_unit = [&](int64_t bytes) {
    return static_cast<double>(bytes - empty) / static_cast<double>(search.units.size());
  };
  return Json{{"units", search.units.size()},
              {"result_bytes", load_result(search.spec, search.units[0]).size()},
              {"empty_bytes", empty},
              {"pending_bytes", pending},
              {"pending_bytes_a_unit", a_unit(pending)},
              {"done_bytes", done},
              {"done_bytes_a_unit", a_unit(done)},
              {"submit_seconds", submit_seconds},
              {"restart_seconds", restart_seconds}};
}

// ---- table --------------------------------------------------------------------------------------

void print_rivals(const Json& report) {
  const double peak = report["load"]["phases"][0]["results_per_second"];
  fmt::print("{:<34}{:>10}{:>10}{:>10}{:>12}\n", "alone, same payload", "changes/s", "p50 ms",
             "p99 ms", "service ÷ it");
  for (const auto& [key, name] :
       {std::pair("redis_pipelined", "Redis, 256 SETs a commit (ceiling)"),
        {"redis_one_a_commit", "Redis, one SET a commit (floor)"},
        {"disk", "disk, one write a sync"}}) {
    const Json& row = report["rivals"][key];
    const double rate = row["per_second"];
    fmt::print("{:<34}{:>10.0f}{:>10.2f}{:>10.2f}{:>12.2f}\n", name, rate,
               row["p50_ms"].get<double>(), row["p99_ms"].get<double>(), peak / rate);
  }
}

void print_phases(const Json& report) {
  fmt::print("\n{:<12}{:>10}{:>9}{:>9}{:>9}{:>11}{:>11}{:>9}{:>7}{:>7}{:>9}\n", "load", "results/s",
             "ack p50", "p99", "max ms", "status p99", "heartb p99", "coord.", "redis", "bench",
             "starved");
  for (const Json& row : report["load"]["phases"]) {
    fmt::print(
        "{:<12}{:>10.0f}{:>9.2f}{:>9.2f}{:>9.1f}{:>11.2f}{:>11.2f}{:>9.2f}{:>7.2f}{:>7.2f}{:>9}\n",
        row["phase"].get<std::string>(), row["results_per_second"].get<double>(),
        row["ack"]["p50_ms"].get<double>(), row["ack"]["p99_ms"].get<double>(),
        row["ack"]["max_ms"].get<double>(), row["status"]["p99_ms"].get<double>(),
        row["heartbeat"]["p99_ms"].get<double>(), row["coordinator_cores"].get<double>(),
        row["redis_cores"].get<double>(), row["bench_cores"].get<double>(),
        row["starved"].get<int64_t>());
  }
  const Json& load = report["load"];
  fmt::print("acknowledged {}, in Redis {}\n", load["acknowledged"].get<int64_t>(),
             load["in_redis"].get<int64_t>());
}

void print_memory(const Json& memory) {
  const auto mib = [&](const char* key) { return memory[key].get<double>() / (1 << 20); };
  fmt::print(
      "\ncoordinator memory, {} units of {} bytes: {:.0f} MiB waiting ({:.0f} bytes a unit), "
      "{:.0f} MiB done ({:.0f}); submit {:.1f} s, restart {:.1f} s\n",
      memory["units"].get<int64_t>(), memory["result_bytes"].get<int64_t>(), mib("pending_bytes"),
      memory["pending_bytes_a_unit"].get<double>(), mib("done_bytes"),
      memory["done_bytes_a_unit"].get<double>(), memory["submit_seconds"].get<double>(),
      memory["restart_seconds"].get<double>());
}

Status measure(const Options& options) {
  const LoadSearch search = realistic_search(options.units_per_search);
  const size_t payload = mean_result_bytes(search);
  Json report;
  report["machine"] = machine(std::filesystem::temp_directory_path().string());
  report["workers"] = options.workers;
  report["credits"] = options.credits;
  report["result_bytes"] = payload;
  report["spec_bytes"] = to_json(search.spec).dump().size();
  report["units_per_search"] = search.units.size();
  say("disk and Redis alone …");
  BA_ASSIGN_OR_RETURN(report["rivals"], measure_rivals(payload, options.seconds / 3));
  say("the service under load …");
  BA_ASSIGN_OR_RETURN(report["load"], measure_load(options, search));
  if (options.memory_units > 0) {
    say("memory …");
    BA_ASSIGN_OR_RETURN(report["memory"], measure_memory(options));
  }
  if (options.json) {
    fmt::print("{}\n", report.dump(2));
    return {};
  }
  fmt::print("{} cores, {}; {} workers × {} units; results of {} bytes\n\n",
             report["machine"]["cores"].get<int>(), report["machine"]["cpu"].get<std::string>(),
             options.workers, options.credits, payload);
  print_rivals(report);
  print_phases(report);
  if (report.contains("memory")) print_memory(report["memory"]);
  return {};
}

int run(int argc, char** argv) {
  CLI::App app{"Load bench of the bitalloc service: durable results a second, latencies, memory."};
  Options options;
  add_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  const Status status = options.quick ? check_durability(options.coordinator) : measure(options);
  if (status.ok()) return 0;
  say(status.error().message + (status.error().hint.empty() ? "" : "; " + status.error().hint));
  return 1;
}

}  // namespace
}  // namespace bitalloc::bench

int main(int argc, char** argv) { return bitalloc::bench::run(argc, argv); }
