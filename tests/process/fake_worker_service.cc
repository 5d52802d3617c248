#include "tests/process/fake_worker_service.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

namespace bitalloc::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void pause_ms(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

// Somebody listens at the unix socket.
bool accepts(const std::string& path) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return connected;
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "bitalloc-XXXXXX").string();
  BA_CHECK(::mkdtemp(pattern.data()) != nullptr, "mkdtemp");
  path_ = pattern;
}
TempDir::~TempDir() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

Child::Child(const std::vector<std::string>& command, const std::string& log_file) {
  std::vector<char*> arguments;
  for (const std::string& text : command) arguments.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  const int log = ::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  pid_ = ::fork();
  if (pid_ != 0) {
    ::close(log);
    return;
  }
  ::dup2(log, 1);
  ::dup2(log, 2);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}
Child::~Child() {
  if (pid_ <= 0) return;
  signal(SIGKILL);
  wait();
}
Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}
Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(status_, other.status_);
  return *this;
}

void Child::signal(int number) {
  if (pid_ > 0) ::kill(pid_, number);
}

int Child::wait() {
  if (pid_ > 0) ::waitpid(pid_, &status_, 0);
  pid_ = -1;
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
}

bool Child::wait_for(int timeout_ms) {
  const auto end = Clock::now() + milliseconds(timeout_ms);
  while (pid_ > 0 && Clock::now() < end) {
    if (::waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    pause_ms(5);
  }
  return pid_ <= 0;
}

std::string redis_address(const TempDir& dir) { return "unix://" + dir.path("redis.sock"); }
std::string client_endpoint(const TempDir& dir) { return "ipc://" + dir.path("client.sock"); }
std::string worker_endpoint(const TempDir& dir) { return "ipc://" + dir.path("worker.sock"); }

Child start_redis(const TempDir& dir, const std::vector<std::string>& extra) {
  std::vector<std::string> command = {"redis-server",
                                      "--port",
                                      "0",
                                      "--unixsocket",
                                      dir.path("redis.sock"),
                                      "--dir",
                                      dir.path(""),
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "yes",
                                      "--appendfsync",
                                      "always",
                                      "--maxmemory-policy",
                                      "noeviction"};
  command.insert(command.end(), extra.begin(), extra.end());
  std::filesystem::remove(dir.path("redis.sock"));
  std::signal(SIGPIPE, SIG_IGN);  // hiredis writes to a Redis that a test has killed
  Child child(command, dir.path("redis.log"));
  for (int i = 0; i < 1'000 && !accepts(dir.path("redis.sock")); ++i) pause_ms(5);
  return child;
}

Child start_coordinator(const TempDir& dir, const std::vector<std::string>& extra) {
  std::vector<std::string> command = {
      std::string(BITALLOC_BINARY_DIR) + "/bin/bitalloc-coordinator",
      "--redis",
      redis_address(dir),
      "--client-endpoint",
      client_endpoint(dir),
      "--worker-endpoint",
      worker_endpoint(dir),
      "--log-level",
      "debug"};
  command.insert(command.end(), extra.begin(), extra.end());
  Child child(command, dir.path("coordinator.log"));
  const auto end = Clock::now() + milliseconds(10'000);
  while (Clock::now() < end && !child.wait_for(1)) {
    const Result<wire::Message> info = call(dir, "info", Json::object(), {}, 200);
    if (info.ok() && info->header.at("pid") == child.pid()) break;
  }
  return child;
}

Result<wire::Message> call(const TempDir& dir, const std::string& type, Json header,
                           std::vector<std::string> blobs, int timeout_ms) {
  ZmqContext context;
  Socket socket(context, Socket::Kind::kDealer);
  BA_RETURN_IF_ERROR(socket.connect(client_endpoint(dir)));
  BA_RETURN_IF_ERROR(socket.send({type, "c1", std::move(header), std::move(blobs)}));
  BA_ASSIGN_OR_RETURN(const bool there, socket.wait(timeout_ms));
  if (!there) return unavailable("no answer to " + type);
  BA_ASSIGN_OR_RETURN(auto received, socket.receive());
  if (!received) return unavailable("no message");
  if (received->error) return *received->error;
  if (received->message.type == "error") return wire::error_of(received->message);
  return std::move(received->message);
}

Json wait_for_state(const TempDir& dir, const std::string& id, const std::string& state,
                    int timeout_ms) {
  const auto end = Clock::now() + milliseconds(timeout_ms);
  Json last;
  do {
    const Result<wire::Message> status = call(dir, "status", {{"id", id}});
    if (status.ok()) last = status->header;
    if (last.is_object() && last.at("state") == state) break;
    pause_ms(20);
  } while (Clock::now() < end);
  return last;
}

std::vector<std::string> SmallSearch::blobs() const {
  std::vector<std::string> all = {ids_to_blob(tokens), mask_to_blob(tokens)};
  if (calibration.empty()) return all;
  all.push_back(ids_to_blob(calibration));
  all.push_back(mask_to_blob(calibration));
  return all;
}

namespace {

TokenSet make_tokens(int sequences, int first) {
  TokenSet tokens{sequences, 8, {}, {}};
  for (int i = 0; i < 8 * sequences; ++i) {
    tokens.input_ids.push_back((first + 37 * i) % 500);
    tokens.mask.push_back(i % 8 != 7);
  }
  return tokens;
}

}  // namespace

SmallSearch small_search(int rows, int sequences, bool calibrated) {
  SmallSearch search;
  SearchSpec& spec = search.spec;
  spec.model = {"/models/small", "small", "llama", "weights", "config", rows, 500};
  for (int i = 0; i < rows; ++i) {
    spec.sites.push_back({fmt::format("model.layers.{}.self_attn", i), i, 64, 64});
  }
  spec.candidates = {*parse_candidate(calibrated ? "fp8[scale=calibrated]" : "fp8"),
                     *parse_candidate("nvfp4")};
  spec.sequences = sequences;
  spec.length = 8;
  spec.batch_sequences = 2;
  spec.effective_bits = 6;
  search.tokens = make_tokens(sequences, 1);
  spec.tokens_sha256 = tokens_sha256(search.tokens);
  if (!calibrated) return search;
  spec.calibration_sequences = 3;
  spec.calibration_length = 8;
  search.calibration = make_tokens(3, 5);
  spec.calibration_sha256 = tokens_sha256(search.calibration);
  return search;
}

}  // namespace bitalloc::testing
