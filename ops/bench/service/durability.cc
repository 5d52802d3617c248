#include "ops/bench/service/durability.h"

#include <chrono>
#include <thread>

#include "ops/bench/service/load_workers.h"
#include "ops/bench/service/service.h"

namespace bitalloc::bench {
namespace {

using std::chrono::milliseconds;

constexpr int kSearches = 3;
constexpr int kUnitsPerSearch = 400;
constexpr int kTimeoutMs = 60'000;

template <typename Condition>
Status wait_until(const char* what, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + milliseconds(kTimeoutMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return internal_error(fmt::format("{} did not happen within {} s", what, kTimeoutMs / 1'000));
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  return {};
}

// Every unit of `units` is in Redis with the bytes that the worker sent.
Status all_stored(const Service& service, const LoadSearch& search,
                  const std::set<LoadWorkers::UnitKey>& units) {
  RedisConnection redis;
  BA_RETURN_IF_ERROR(redis.connect(service.redis_address(), kTimeoutMs));
  for (const auto& [id, name] : units) {
    BA_ASSIGN_OR_RETURN(const RedisReply stored,
                        redis.command({"HGET", fmt::format("bitalloc:{{{}}}:results", id), name}));
    BA_ASSIGN_OR_RETURN(const UnitId unit, parse_unit_name(name));
    if (stored.text() == load_result(search.spec, unit)) continue;
    return internal_error(fmt::format("{} of '{}' was acknowledged, but {} in Redis", name, id,
                                      stored.is_nil() ? "is not" : "has other bytes"));
  }
  return {};
}

Status all_done(const Service& service, const LoadSearch& search) {
  for (int i = 0; i < kSearches; ++i) {
    const std::string id = Feeder::id_of(i);
    const Json status = testing::wait_for_state(service.dir(), id, "done", kTimeoutMs);
    if (!status.is_object() || status["state"] != "done" || status["conflicts"] != 0 ||
        status["units"]["done"] != search.units.size()) {
      return internal_error(fmt::format("search '{}' did not end well: {}", id, status.dump()));
    }
  }
  return {};
}

}  // namespace

Status check_durability(const std::string& coordinator) {
  const LoadSearch search = realistic_search(kUnitsPerSearch);
  const int64_t total = kSearches * std::ssize(search.units);
  Service service(coordinator);
  BA_RETURN_IF_ERROR(service.start());
  for (int i = 0; i < kSearches; ++i) {
    BA_ASSIGN_OR_RETURN(
        const wire::Message submitted,
        testing::call(service.dir(), "submit",
                      {{"id", Feeder::id_of(i)}, {"spec", to_json(search.spec)}}, search.blobs));
  }
  LoadWorkersOptions options{testing::worker_endpoint(service.dir()), 8, 4, true};
  LoadWorkers workers(options, search);
  for (const int64_t killed_at : {total / 4, total / 2}) {
    workers.pace(2'000);
    BA_RETURN_IF_ERROR(wait_until("the load", [&] { return workers.acknowledged() >= killed_at; }));
    BA_RETURN_IF_ERROR(service.restart_coordinator());
    BA_RETURN_IF_ERROR(all_stored(service, search, workers.acknowledged_units()));
  }
  workers.saturate();
  BA_RETURN_IF_ERROR(all_done(service, search));
  BA_RETURN_IF_ERROR(wait_until("the last acknowledgement",
                                [&] { return std::ssize(workers.acknowledged_units()) == total; }));
  BA_RETURN_IF_ERROR(all_stored(service, search, workers.acknowledged_units()));
  if (workers.granted_again() > 0) {
    return internal_error(
        fmt::format("{} acknowledged units were handed out again", workers.granted_again()));
  }
  fmt::print("{} results acknowledged, all in Redis after two kill -9 of the coordinator\n", total);
  return {};
}

}  // namespace bitalloc::bench
