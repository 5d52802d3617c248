#include "ops/cli/local_service.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "common/files.h"
#include "common/secret_file.h"
#include "ops/cli/process.h"
#include "ops/cli/settings.h"
#include "ops/cli/tcp_address.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr double kStopSeconds = 40;  // the longest that a shutdown takes: redis-server's patience
constexpr auto kStartLimit = 60s;

std::string state_of(const Json& service) {
  return service.is_object() ? service.value("state", "") : "";
}

}  // namespace

bool is_supervised(const LocalPaths& paths) {
  std::error_code ignored;
  if (!fs::exists(paths.supervisor_lock(), ignored)) return false;
  Result<FileLock> lock = FileLock::open(paths.supervisor_lock());
  return lock.ok() && !lock->try_lock(FileLock::Mode::kShared);
}

Json read_service_file(const LocalPaths& paths) {
  std::error_code ignored;
  if (!fs::exists(paths.service_file(), ignored)) return {};
  const Result<std::string> text = read_file(paths.service_file(), 1 << 20);
  if (!text.ok()) return {};
  const Result<Json> json = parse_json(*text, "service.json");
  return json.ok() ? *json : Json();
}

Result<std::unique_ptr<LocalService>> LocalService::attach(const fs::path& home,
                                                           const DoorRequest& doors) {
  const LocalPaths paths = local_paths(home);
  BA_RETURN_IF_ERROR(make_folders(paths));
  BA_ASSIGN_OR_RETURN(FileLock clients, FileLock::open(paths.clients_lock()));
  if (!clients.lock(FileLock::Mode::kShared, kStopSeconds)) {
    return unavailable(fmt::format("the service of {} does not finish stopping", home.string()),
                       paths.clients_lock().string(),
                       fmt::format("see {}", paths.log("supervisor").string()));
  }
  std::unique_ptr<LocalService> service(new LocalService(paths, doors, std::move(clients)));
  BA_RETURN_IF_ERROR(service->start_if_missing());
  BA_RETURN_IF_ERROR(service->wait_until_running());
  return service;
}

LocalService::~LocalService() {
  clients_.unlock();
  wait_until_stopped();
}

// One starter at a time; a supervisor that lost the race for its lock ends by itself.
Status LocalService::start_if_missing() {
  if (is_supervised(paths_)) return {};
  BA_RETURN_IF_ERROR(make_folders(paths_));
  BA_ASSIGN_OR_RETURN(FileLock starter, FileLock::open(paths_.start_lock()));
  if (!starter.lock(FileLock::Mode::kExclusive, kStopSeconds)) {
    return unavailable("another command does not finish starting the service",
                       paths_.start_lock().string());
  }
  if (is_supervised(paths_)) return {};
  std::error_code ignored;
  fs::remove(paths_.service_file(), ignored);
  fs::remove(paths_.workers_file(), ignored);  // of earlier commands; see ensure()
  fs::remove(paths_.http_file(), ignored);
  SpawnOptions options;
  options.arguments = {this_program().string(), kSupervise, paths_.home.string(),
                       to_json(doors_).dump()};
  options.output = paths_.log("supervisor");
  options.detach = true;
  BA_RETURN_IF_ERROR(spawn(options));
  const auto deadline = Clock::now() + kStartLimit;
  while (!is_supervised(paths_) && state_of(read_service_file(paths_)) != "failed") {
    if (Clock::now() > deadline) {
      return unavailable("the supervisor does not start", paths_.log("supervisor").string());
    }
    std::this_thread::sleep_for(2ms);
  }
  return {};
}

Status LocalService::wait_until_running() {
  const auto deadline = Clock::now() + kStartLimit;
  while (true) {
    const Json service = read_service_file(paths_);
    const std::string state = state_of(service);
    if (state == "running") return check_doors(service);
    if (state == "failed") return error_from_json(service["error"]);
    if (Clock::now() > deadline) {
      return unavailable("the local service does not get ready", paths_.logs.string(),
                         "`bitalloc doctor` checks the set-up");
    }
    std::this_thread::sleep_for(5ms);
  }
}

// Another command may have started the service.
Status LocalService::check_doors(const Json& service) const {
  if (doors_ == DoorRequest()) return {};
  if (doors_from_json(service.value("doors", Json())) == doors_) return {};
  return unavailable("the service of this home runs already, and listens elsewhere",
                     paths_.service_file().string(),
                     "end the other `bitalloc` commands of this home, then try again");
}

Status LocalService::ensure() {
  if (!is_supervised(paths_)) {
    const Json service = read_service_file(paths_);
    if (state_of(service) == "failed") return error_from_json(service["error"]);
    BA_RETURN_IF_ERROR(start_if_missing());
  }
  BA_RETURN_IF_ERROR(wait_until_running());
  if (!wanted_http_.address.empty()) BA_RETURN_IF_ERROR(want_http(wanted_http_));
  return want_workers(wanted_);
}

Status LocalService::want_workers(const WorkerRequest& request) {
  wanted_ = request;
  if (read_worker_request(paths_.workers_file()).count >= request.count) return {};
  BA_ASSIGN_OR_RETURN(FileLock starter, FileLock::open(paths_.start_lock()));
  if (!starter.lock(FileLock::Mode::kExclusive, kStopSeconds)) {
    return unavailable("another command does not finish starting the service",
                       paths_.start_lock().string());
  }
  if (read_worker_request(paths_.workers_file()).count >= request.count) return {};
  return write_file_atomically(paths_.workers_file(), to_json(request).dump() + "\n");
}

Status LocalService::want_http(const HttpRequest& request) {
  wanted_http_ = request;
  const HttpRequest served = read_http_request(paths_.http_file());
  if (served == request) return {};
  BA_ASSIGN_OR_RETURN(const TcpAddress address, TcpAddress::parse(request.address));
  if (served.address != request.address && !address.is_free()) {
    return invalid_argument(fmt::format("{} is taken by another program", request.address),
                            "--http", "choose another port");
  }
  BA_RETURN_IF_ERROR(make_secret_file(paths_.http_token(), random_secret()));
  BA_RETURN_IF_ERROR(write_file_atomically(paths_.http_file(), to_json(request).dump() + "\n"));
  const auto deadline = Clock::now() + kStartLimit;
  while (!address.accepts_connections()) {
    BA_RETURN_IF_ERROR(wait_until_running());
    if (Clock::now() > deadline) {
      return unavailable(fmt::format("nothing answers at {}", request.address), "--http",
                         fmt::format("see {}", paths_.log("coordinator").string()));
    }
    std::this_thread::sleep_for(10ms);
  }
  return {};
}

// The supervisor takes clients.lock exclusively when nobody is attached, and frees supervisor.lock
// when all is stopped. Another command that is attached holds clients.lock shared: then nothing
// stops.
void LocalService::wait_until_stopped() {
  const auto deadline = Clock::now() + 30s;
  while (is_supervised(paths_) && Clock::now() < deadline) {
    const bool nobody = clients_.try_lock(FileLock::Mode::kExclusive);
    const bool another = !nobody && clients_.try_lock(FileLock::Mode::kShared);
    clients_.unlock();
    if (another) return;
    std::this_thread::sleep_for(10ms);
  }
}

}  // namespace bitalloc::cli
