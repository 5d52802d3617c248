#include "ops/cli/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "common/files.h"
#include "ops/cli/file_lock.h"
#include "ops/cli/key_store.h"
#include "ops/cli/process.h"
#include "ops/cli/settings.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr size_t kMaxDeathsInAMinute = 6;  // of one child: the next one is the end
constexpr auto kTick = 40ms;
constexpr auto kStartTick = 5ms;
constexpr int kSuperviseFailed = 1;
// A unit under way at the end is leased: another worker, or the next service, does it again.
constexpr const char* kWorkerGraceSeconds = "1";

volatile sig_atomic_t stop_asked = 0;
void ask_to_stop(int) { stop_asked = 1; }

bool accepts_connections(const fs::path& socket_file) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_file.string().size() >= sizeof address.sun_path) return false;
  std::strcpy(address.sun_path, socket_file.c_str());
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool good =
      ::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(descriptor);
  return good;
}

std::string last_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::string last;
  while (std::getline(stream, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

// For the other ranks to see that one has ended, to report it and to end themselves.
constexpr auto kRankPatience = 6s;
// A file of commands; null when it is missing or malformed.
Json read_request(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return {};
  const Result<std::string> text = read_file(file, 1 << 16);
  if (!text.ok()) return {};
  const Result<Json> json = parse_json(*text, file.string());
  return json.ok() ? *json : Json();
}

void add_memory_arguments(const WorkerRequest& asked, std::vector<std::string>& arguments) {
  const std::pair<const char*, const std::string&> sizes[] = {
      {"--memory-limit", asked.memory_limit},
      {"--activation-memory", asked.activation_memory},
      {"--host-activation-memory", asked.host_activation_memory}};
  for (const auto& [flag, size] : sizes) {
    if (!size.empty()) arguments.insert(arguments.end(), {flag, size});
  }
  arguments.insert(arguments.end(),
                   {"--machine-workers", fmt::format("{}", asked.count * asked.tensor_parallel)});
}

// One child that is kept alive.
struct Child {
  std::string name;
  std::vector<std::string> arguments;
  fs::path output;
  int keep_descriptor = -1;
  std::chrono::milliseconds patience = 5s;  // between SIGTERM and SIGKILL

  pid_t pid = 0;
  Clock::time_point start_at = Clock::now();
  std::deque<Clock::time_point> deaths;  // of the last minute
  int restarts = 0;

  // Rank 0 of a worker of several: the others, which start and are counted with it.
  std::vector<Child*> followers;
  Child* leader = nullptr;                   // of a follower
  std::optional<Clock::time_point> kill_at;  // what is left of the ranks, when one has ended
};

class Supervisor {
 public:
  Supervisor(LocalPaths paths, DoorRequest doors, FileLock own, FileLock clients)
      : paths_(std::move(paths)),
        doors_(std::move(doors)),
        own_(std::move(own)),
        clients_(std::move(clients)) {}

  int run();

 private:
  Status prepare();
  Status write_redis_configuration() const;
  std::vector<std::string> door_arguments() const;
  void add_children();
  std::vector<std::string> coordinator_command() const;
  void follow_worker_request();
  Child& add_rank(const std::string& name, const WorkerRequest& asked, int rank,
                  const fs::path& rendezvous);
  void add_worker(int index, const WorkerRequest& asked);
  void follow_http_request();
  bool may_start(const Child& child) const;
  void start_due_children();
  void start(Child& child);
  void bury_dead_children();
  void bury(Child& child, int status);
  void note_death(Child& child, const Child& dead, int status);
  void end_broken_groups();
  void update_state();
  void publish();
  void stop_children();
  void stop(Child& child);
  void finish();

  LocalPaths paths_;
  DoorRequest doors_;
  FileLock own_;      // supervisor.lock
  FileLock clients_;  // clients.lock
  FileLock writer_;   // redis/writer.lock
  std::vector<std::unique_ptr<Child>> children_;
  WorkerRequest workers_;
  HttpRequest http_;  // as the coordinator has it
  std::string state_ = "starting";
  std::optional<Error> error_;
  std::string published_;
};

Status Supervisor::write_redis_configuration() const {
  const auto quoted = [](const fs::path& path) {
    std::string text = "\"";
    for (const char c : path.string()) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    return text + "\"";
  };
  const std::string text = fmt::format(
      "port 0\nunixsocket {}\nunixsocketperm 700\ndir {}\nlogfile {}\n"
      "daemonize no\nsave \"\"\nappendonly yes\nappendfsync always\n"
      "no-appendfsync-on-rewrite no\nmaxmemory-policy noeviction\n",
      quoted(paths_.redis_socket()), quoted(paths_.redis), quoted(paths_.log("redis")));
  return write_file_atomically(paths_.redis / "redis.conf", text);
}

// Stops what a killed supervisor may have left, then takes the append-only file for ourselves.
Status Supervisor::prepare() {
  BA_RETURN_IF_ERROR(make_folders(paths_));
  for (const auto& entry : fs::directory_iterator(paths_.run)) {
    const fs::path file = entry.path();
    if (file.extension() == ".pid" && file.stem() != "supervisor") kill_recorded(file);
  }
  BA_RETURN_IF_ERROR(
      write_process_file(paths_.process_file("supervisor"), identify(::getpid()).value()));
  BA_ASSIGN_OR_RETURN(writer_, FileLock::open(paths_.redis_lock()));
  if (!writer_.lock(FileLock::Mode::kExclusive, 10)) {
    return unavailable(fmt::format("another redis-server still writes {}", paths_.redis.string()),
                       paths_.redis_lock().string(),
                       "find it with `fuser` on that file, and stop it");
  }
  if (find_in_path("redis-server").empty()) {
    return unavailable("redis-server is not installed", "PATH",
                       "install it: apt-get install redis-server");
  }
  return write_redis_configuration();
}

// Of the coordinator.
std::vector<std::string> Supervisor::door_arguments() const {
  std::vector<std::string> arguments;
  const auto add = [&](const std::string& flag, const std::string& value) {
    arguments.push_back(flag);
    arguments.push_back(value);
  };
  if (!doors_.listen.empty()) add("--client-endpoint", doors_.listen);
  if (!doors_.listen_workers.empty()) add("--worker-endpoint", doors_.listen_workers);
  if (!arguments.empty()) {
    add("--server-key", (keys_folder(paths_.home) / "server.key").string());
    add("--allow", allow_list_file(paths_.home).string());
  }
  for (const std::string& root : doors_.model_roots) add("--model-root", root);
  return arguments;
}

std::vector<std::string> Supervisor::coordinator_command() const {
  std::vector<std::string> command = {program_beside("bitalloc-coordinator").string(),
                                      "--client-endpoint",
                                      paths_.client_endpoint(),
                                      "--worker-endpoint",
                                      paths_.worker_endpoint(),
                                      "--redis",
                                      "unix://" + paths_.redis_socket().string(),
                                      "--checkpoint-dir",
                                      paths_.searches.string(),
                                      "--log-file",
                                      paths_.log("coordinator").string(),
                                      "--take-over"};
  const std::vector<std::string> doors = door_arguments();
  command.insert(command.end(), doors.begin(), doors.end());
  if (http_.address.empty()) return command;
  for (const std::string& flag : {std::string("--http"), http_.address,
                                  std::string("--http-token-file"), paths_.http_token().string()}) {
    command.push_back(flag);
  }
  if (http_.read_only) command.push_back("--http-read-only");
  return command;
}

void Supervisor::add_children() {
  auto redis = std::make_unique<Child>();
  redis->name = "redis";
  redis->arguments = {find_in_path("redis-server").string(),
                      (paths_.redis / "redis.conf").string()};
  redis->keep_descriptor = writer_.descriptor();
  redis->patience = 20s;  // flushes its file

  auto coordinator = std::make_unique<Child>();
  coordinator->name = "coordinator";
  coordinator->arguments = coordinator_command();
  children_.push_back(std::move(redis));
  children_.push_back(std::move(coordinator));
  for (auto& child : children_) child->output = paths_.logs / (child->name + ".out");
}

Child& Supervisor::add_rank(const std::string& name, const WorkerRequest& asked, int rank,
                            const fs::path& rendezvous) {
  auto worker = std::make_unique<Child>();
  worker->name = name;
  worker->arguments = {program_beside("bitalloc-worker").string(),
                       "--coordinator",
                       paths_.worker_endpoint(),
                       "--device",
                       asked.device,
                       "--threads",
                       fmt::format("{}", asked.threads),
                       "--grace",
                       kWorkerGraceSeconds,
                       "--log-file",
                       paths_.log(name).string()};
  add_memory_arguments(asked, worker->arguments);
  if (asked.tensor_parallel > 1) {
    for (const std::string& argument :
         {std::string("--tp"), fmt::format("{}", asked.tensor_parallel), std::string("--rank"),
          fmt::format("{}", rank), std::string("--rendezvous"), "file:" + rendezvous.string()}) {
      worker->arguments.push_back(argument);
    }
  }
  worker->output = paths_.logs / (name + ".out");
  worker->patience = 3s;
  children_.push_back(std::move(worker));
  return *children_.back();
}

void Supervisor::add_worker(int index, const WorkerRequest& asked) {
  const std::string name = fmt::format("worker-{}", index);
  const fs::path rendezvous = paths_.rendezvous_file(name);
  Child& leader = add_rank(name, asked, 0, rendezvous);
  for (int rank = 1; rank < asked.tensor_parallel; ++rank) {
    Child& follower = add_rank(fmt::format("{}-rank-{}", name, rank), asked, rank, rendezvous);
    follower.leader = &leader;
    leader.followers.push_back(&follower);
  }
}

void Supervisor::follow_worker_request() {
  const WorkerRequest asked = read_worker_request(paths_.workers_file());
  for (int i = workers_.count; i < asked.count; ++i) add_worker(i, asked);
  if (asked.count > workers_.count) workers_ = asked;
}

// A coordinator loses nothing when it is stopped, so that changed flags are a new coordinator.
void Supervisor::follow_http_request() {
  const HttpRequest asked = read_http_request(paths_.http_file());
  if (asked == http_ || asked.address.empty()) return;
  http_ = asked;
  for (auto& child : children_) {
    if (child->name != "coordinator") continue;
    stop(*child);
    child->arguments = coordinator_command();
  }
}

bool Supervisor::may_start(const Child& child) const {
  if (child.pid != 0 || child.leader != nullptr || Clock::now() < child.start_at) return false;
  for (const Child* follower : child.followers) {
    if (follower->pid != 0) return false;
  }
  if (child.name == "redis") return true;
  if (child.name == "coordinator") return accepts_connections(paths_.redis_socket());
  return state_ == "running";
}

void Supervisor::start_due_children() {
  for (size_t i = 0; i < children_.size(); ++i) {
    Child& child = *children_[i];
    if (!may_start(child)) continue;
    std::error_code ignored;
    if (child.name == "redis") fs::remove(paths_.redis_socket(), ignored);
    if (child.name == "coordinator") fs::remove(paths_.client_socket(), ignored);
    if (!child.followers.empty()) fs::remove(paths_.rendezvous_file(child.name), ignored);
    child.kill_at.reset();
    start(child);
    for (Child* follower : child.followers) start(*follower);
  }
}

void Supervisor::start(Child& child) {
  SpawnOptions options;
  options.arguments = child.arguments;
  options.output = child.output;
  options.keep_descriptor = child.keep_descriptor;
  options.die_with_parent = true;
  Result<pid_t> pid = spawn(options);
  if (!pid.ok()) {
    bury(child, 127 << 8);
    return;
  }
  child.pid = *pid;
  const auto process = identify(child.pid);
  if (!process.has_value()) return;  // dead already: noticed by the next waitpid
  const Status written = write_process_file(paths_.process_file(child.name), *process);
  if (!written.ok()) error_ = written.error();
}

void Supervisor::bury(Child& child, int status) {
  child.pid = 0;
  Child& counted = child.leader != nullptr ? *child.leader : child;
  if (counted.kill_at.has_value()) return;  // one of several ranks: the first death is the cause
  note_death(counted, child, status);
  if (!counted.followers.empty()) counted.kill_at = Clock::now() + kRankPatience;
}

// `dead`: the child itself, or one of its followers.
void Supervisor::note_death(Child& child, const Child& dead, int status) {
  const auto now = Clock::now();
  ++child.restarts;
  child.deaths.push_back(now);
  while (now - child.deaths.front() > 60s) child.deaths.pop_front();
  const size_t recent = child.deaths.size();
  child.start_at = now + (recent == 1 ? 0ms : 100ms * (1 << std::min<size_t>(recent, 6)));
  const std::string how = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                              : fmt::format("exit code {}", WEXITSTATUS(status));
  fmt::print(stderr, "{} ended ({}); {} deaths in the last minute\n", dead.name, how, recent);
  if (recent < kMaxDeathsInAMinute) return;
  std::string said = last_line(dead.output);
  if (said.empty()) said = last_line(paths_.log(dead.name));
  error_ = unavailable(
      fmt::format("{} ended {} times within a minute (last: {}){}", child.name, recent, how,
                  said.empty() ? "" : ": " + said),
      child.name,
      fmt::format("see the logs in {}; `bitalloc doctor` checks the set-up", paths_.logs.string()));
}

void Supervisor::bury_dead_children() {
  int status = 0;
  for (pid_t pid = ::waitpid(-1, &status, WNOHANG); pid > 0;
       pid = ::waitpid(-1, &status, WNOHANG)) {
    for (auto& child : children_) {
      if (child->pid == pid) bury(*child, status);
    }
  }
}

// A rank that is frozen, or still waits for a lost one, does not hold up the others' new start.
void Supervisor::end_broken_groups() {
  for (auto& child : children_) {
    if (!child->kill_at.has_value() || Clock::now() < *child->kill_at) continue;
    if (child->pid != 0) ::kill(child->pid, SIGKILL);
    for (const Child* follower : child->followers) {
      if (follower->pid != 0) ::kill(follower->pid, SIGKILL);
    }
  }
}

void Supervisor::update_state() {
  if (error_.has_value()) {
    state_ = "failed";
  } else if (state_ == "starting" && accepts_connections(paths_.client_socket())) {
    state_ = "running";
  }
}

// Writes service.json when it changed.
void Supervisor::publish() {
  Json processes = Json::object();
  Json restarts = Json::object();
  for (const auto& child : children_) {
    processes[child->name] = child->pid;
    restarts[child->name] = child->restarts;
  }
  const Json json = {{"state", state_},
                     {"pid", ::getpid()},
                     {"client_endpoint", paths_.client_endpoint()},
                     {"worker_endpoint", paths_.worker_endpoint()},
                     {"redis_socket", paths_.redis_socket().string()},
                     {"workers", to_json(workers_)},
                     {"doors", to_json(doors_)},
                     {"http", to_json(http_)},
                     {"processes", processes},
                     {"restarts", restarts},
                     {"error", error_.has_value() ? error_to_json(*error_) : Json()}};
  if (json.dump() == published_) return;
  published_ = json.dump();
  const Status written = write_file_atomically(paths_.service_file(), json.dump(2) + "\n");
  if (!written.ok()) fmt::print(stderr, "{}\n", written.error().message);
}

void Supervisor::stop(Child& child) {
  if (child.pid == 0) return;
  ::kill(child.pid, SIGTERM);
  const auto deadline = Clock::now() + child.patience;
  while (::waitpid(child.pid, nullptr, WNOHANG) == 0) {
    if (Clock::now() > deadline) ::kill(child.pid, SIGKILL);
    std::this_thread::sleep_for(2ms);
  }
  child.pid = 0;
  std::error_code ignored;
  fs::remove(paths_.process_file(child.name), ignored);
}

// Workers first, Redis last: whoever stops still reaches whom it reports to.
void Supervisor::stop_children() {
  for (size_t i = 2; i < children_.size(); ++i) {
    if (children_[i]->pid != 0) ::kill(children_[i]->pid, SIGTERM);  // all at once, then wait
  }
  for (auto child = children_.rbegin(); child != children_.rend(); ++child) stop(**child);
}

void Supervisor::finish() {
  std::error_code ignored;
  for (const fs::path& file : {paths_.client_socket(), paths_.worker_socket(),
                               paths_.redis_socket(), paths_.process_file("supervisor")}) {
    fs::remove(file, ignored);
  }
  for (const auto& child : children_) {
    if (!child->followers.empty()) fs::remove(paths_.rendezvous_file(child->name), ignored);
  }
  if (state_ != "failed") fs::remove(paths_.service_file(), ignored);
  if (paths_.sockets != paths_.run) fs::remove(paths_.sockets, ignored);
  // A command that gets clients.lock must find supervisor.lock free.
  own_.close();
  clients_.close();
}

int Supervisor::run() {
  const Status prepared = prepare();
  if (prepared.ok()) {
    add_children();
  } else {
    error_ = prepared.error();
  }
  while (true) {
    update_state();
    publish();
    if (error_.has_value() || stop_asked != 0) break;
    if (clients_.try_lock(FileLock::Mode::kExclusive)) break;
    follow_worker_request();
    follow_http_request();
    start_due_children();
    std::this_thread::sleep_for(state_ == "starting" ? kStartTick : kTick);
    bury_dead_children();
    end_broken_groups();
  }
  stop_children();
  finish();
  return error_.has_value() ? kSuperviseFailed : 0;
}

}  // namespace

Json to_json(const WorkerRequest& request) {
  return {{"count", request.count},
          {"threads", request.threads},
          {"tp", request.tensor_parallel},
          {"device", request.device},
          {"memory_limit", request.memory_limit},
          {"activation_memory", request.activation_memory},
          {"host_activation_memory", request.host_activation_memory}};
}

WorkerRequest read_worker_request(const fs::path& file) {
  const Json json = read_request(file);
  const auto count = json_field_or<int>(json, "count", "workers", 0);
  const auto threads = json_field_or<int>(json, "threads", "workers", 0);
  const auto ranks = json_field_or<int>(json, "tp", "workers", 1);
  const auto device = json_field_or<std::string>(json, "device", "workers", "auto");
  if (!count.ok() || !threads.ok() || !ranks.ok() || !device.ok()) return {};
  WorkerRequest request = {*count, *threads, *ranks, *device, "", "", ""};
  for (auto [key, size] : {std::pair{"memory_limit", &request.memory_limit},
                           std::pair{"activation_memory", &request.activation_memory},
                           std::pair{"host_activation_memory", &request.host_activation_memory}}) {
    const auto text = json_field_or<std::string>(json, key, "workers", "");
    if (!text.ok()) return {};
    *size = *text;
  }
  return request;
}

Json to_json(const DoorRequest& doors) {
  return {{"listen", doors.listen},
          {"listen_workers", doors.listen_workers},
          {"model_roots", doors.model_roots}};
}

DoorRequest doors_from_json(const Json& json) {
  const auto listen = json_field_or<std::string>(json, "listen", "doors", "");
  const auto workers = json_field_or<std::string>(json, "listen_workers", "doors", "");
  const auto roots = json_field_or<std::vector<std::string>>(json, "model_roots", "doors", {});
  if (!listen.ok() || !workers.ok() || !roots.ok()) return {};
  return {*listen, *workers, *roots};
}

Json to_json(const HttpRequest& request) {
  return {{"address", request.address}, {"read_only", request.read_only}};
}

HttpRequest read_http_request(const fs::path& file) {
  const Json json = read_request(file);
  const auto address = json_field_or<std::string>(json, "address", "http", "");
  const auto read_only = json_field_or<bool>(json, "read_only", "http", false);
  if (!address.ok() || !read_only.ok()) return {};
  return {*address, *read_only};
}

int supervise(const fs::path& home, const std::string& doors) {
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  struct sigaction action = {};
  action.sa_handler = ask_to_stop;
  ::sigaction(SIGTERM, &action, nullptr);

  const LocalPaths paths = local_paths(home);
  Result<FileLock> own = FileLock::open(paths.supervisor_lock());
  Result<FileLock> clients = FileLock::open(paths.clients_lock());
  if (!own.ok() || !clients.ok()) return kSuperviseFailed;
  if (!own->try_lock(FileLock::Mode::kExclusive)) return 0;  // somebody supervises already
  const Result<Json> asked = parse_json(doors, "doors");
  return Supervisor(paths, asked.ok() ? doors_from_json(*asked) : DoorRequest(),
                    std::move(own).value(), std::move(clients).value())
      .run();
}

}  // namespace bitalloc::cli
