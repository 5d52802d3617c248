#include "worker/service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <random>
#include <thread>

#include "common/fingerprint.h"
#include "common/protocol.h"

namespace bitalloc {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstBackOff{1'000};
constexpr milliseconds kLongestBackOff{32'000};
constexpr milliseconds kResend{5'000};  // an unacknowledged result is sent again after this

constexpr const char* kHello = "hello";  // correlation id, to tell the welcome from other replies

std::string new_epoch() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  std::random_device random;
  return fmt::format("{}-{}-{:08x}", host, ::getpid(), random());
}

// A unit in the worker's hands, from its arrival until its result is acknowledged.
struct Held {
  enum class State { kQueued, kRunning, kFinished };
  UnitWork work;
  State state = State::kQueued;
  std::atomic<bool> cancel{false};
  std::optional<wire::Message> report;  // `result` or `fail`, once finished
  SteadyClock::time_point sent;
};

wire::Message unit_message(const char* type, const std::string& epoch, const UnitWork& work) {
  wire::Message message;
  message.type = type;
  message.header = {{"epoch", epoch},
                    {"search", work.search.value},
                    {"unit", unit_name(work.unit)},
                    {"fence", work.fence.value}};
  return message;
}

// The same cause would stop the unit on any worker, or the coordinator must decide: no retry.
bool is_retryable(ErrorCode code) {
  return code == ErrorCode::kInternal || code == ErrorCode::kResourceExhausted ||
         code == ErrorCode::kUnavailable;
}

}  // namespace

class WorkerService::Impl {
 public:
  Impl(ServiceOptions options, std::unique_ptr<UnitRunner> runner)
      : options_(std::move(options)),
        runner_(std::move(runner)),
        epoch_(new_epoch()),
        wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        socket_(context_, Socket::Kind::kDealer) {
    BA_CHECK(wake_fd_ >= 0, "eventfd");
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      finishing_ = true;
      for (auto& held : held_) held->cancel = true;
    }
    changed_.notify_all();
    if (compute_.joinable()) compute_.join();
    ::close(wake_fd_);
  }

  Status run() {
    BA_RETURN_IF_ERROR(connect());
    compute_ = std::thread([this] { compute_loop(); });
    heard_ = SteadyClock::now();
    say_hello();
    while (!done()) {
      const Result<bool> ready =
          socket_.wait(static_cast<int>(time_to_next_step().count()), wake_fd_);
      if (!ready.ok()) return ready.error();
      uint64_t wakes = 0;
      while (::read(wake_fd_, &wakes, sizeof wakes) > 0) {
      }
      BA_RETURN_IF_ERROR(receive_all());
      step(SteadyClock::now());
    }
    send(simple("bye"));
    ::usleep(50'000);  // linger is 0: let the I/O thread put the goodbye on the wire
    return {};
  }

  void request_stop() {
    stop_requested_ = true;
    wake();
  }

 private:
  // ---- compute thread ----------------------------------------------------------------------

  void compute_loop() {
    while (std::shared_ptr<Held> held = next_unit()) {
      const auto start = SteadyClock::now();
      Result<UnitResult> result = runner_->run(held->work, held->cancel);
      const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
      finish(*held, std::move(result), seconds);
    }
  }

  std::shared_ptr<Held> next_unit() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (finishing_) return nullptr;
      const auto queued = std::find_if(held_.begin(), held_.end(), [](const auto& held) {
        return held->state == Held::State::kQueued;
      });
      if (queued != held_.end()) {
        (*queued)->state = Held::State::kRunning;
        return *queued;
      }
      changed_.wait(lock);
    }
  }

  void finish(Held& held, Result<UnitResult> result, double seconds) {
    {
      const std::lock_guard lock(mutex_);  // on_unit writes the fence of a unit granted again
      held.state = Held::State::kFinished;
      if (held.cancel) {  // nobody wants it any more
        std::erase_if(held_, [&](const auto& other) { return other.get() == &held; });
      } else {
        held.report = report_of(held.work, result, seconds);
      }
    }
    wake();
  }

  wire::Message report_of(const UnitWork& work, const Result<UnitResult>& result,
                          double seconds) const {
    const std::string unit = unit_name(work.unit);
    wire::Message report = unit_message(result.ok() ? "result" : "fail", epoch_, work);
    report.header["seconds"] = seconds;
    report.header["numerics_version"] = kNumericsVersion;
    if (result.ok()) {
      report.header["fingerprint"] = fingerprint(work.spec).sha256;
      spdlog::info("unit {} of {}: {:.3f} s", unit, work.search.value, seconds);
      report.blobs.push_back(pack(*result));
    } else {
      spdlog::warn("unit {} of {} failed: {}", unit, work.search.value, result.error().message);
      report.header["error"] = error_to_json(result.error());
      report.header["retryable"] = is_retryable(result.error().code);
    }
    return report;
  }

  // ---- protocol thread ---------------------------------------------------------------------

  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
  }

  wire::Message simple(const char* type) const {
    wire::Message message;
    message.type = type;
    message.header = {{"epoch", epoch_}};
    return message;
  }

  void send(const wire::Message& message) {
    if (const Status sent = socket_.send(message); !sent.ok()) {
      spdlog::debug("{}", sent.error().message);  // sent again by the next step
    }
  }

  Status connect() {
    if (options_.keys.has_value()) socket_.use_curve(*options_.keys);
    return socket_.connect(options_.coordinator);
  }

  void say_hello() {
    wire::Message hello = simple("hello");
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    hello.header.update(runner_->capabilities());
    hello.header["host"] = host;
    hello.header["pid"] = ::getpid();
    hello.header["protocol"] = spoken_protocols();
    hello.header["numerics_version"] = kNumericsVersion;
    hello.header["models"] = runner_->models();
    hello.correlation_id = kHello;
    send(hello);
    welcomed_ = false;
    next_hello_ = SteadyClock::now() + back_off_;
    back_off_ = std::min(2 * back_off_, kLongestBackOff);
  }

  Status receive_all() {
    while (true) {
      BA_ASSIGN_OR_RETURN(std::optional<Socket::Received> received, socket_.receive());
      if (!received) return {};
      heard_ = SteadyClock::now();
      if (received->error) {
        spdlog::warn("a message that is none: {}", received->error->message);
        continue;
      }
      handle(received->message);
    }
  }

  void handle(const wire::Message& message) {
    if (message.type == "ok") {
      if (message.correlation_id == kHello && !welcomed_) on_welcome();
    } else if (message.type == "unit") {
      on_unit(message);
    } else if (message.type == "ack") {
      forget(message.header);
    } else if (message.type == "revoke") {
      on_revoke(message.header);
    } else if (message.type == "drain") {
      draining_ = true;
    } else if (message.type == "error") {
      const Error error = wire::error_of(message);
      if (error.code == ErrorCode::kNotFound) {
        say_hello();  // the coordinator is new, or gave us up
      } else if (error.code == ErrorCode::kUnsupported && message.correlation_id == kHello) {
        spdlog::error("{}; {}. Trying again in {} s", error.message, error.hint,
                      std::chrono::duration_cast<std::chrono::seconds>(back_off_).count());
      } else {
        spdlog::error("the coordinator refused a message: {}", error.message);
      }
    }
  }

  void on_welcome() {
    spdlog::info("connected to {} as {}", options_.coordinator, epoch_);
    welcomed_ = true;
    back_off_ = kFirstBackOff;
    announced_credits_ = -1;
    next_heartbeat_ = SteadyClock::now();
    const std::lock_guard lock(mutex_);
    for (auto& held : held_) held->sent = {};  // whatever was not acknowledged goes out again
  }

  void on_unit(const wire::Message& message) {
    Result<UnitWork> work = unit_work_from_message(message.header, message.blobs);
    if (!work.ok()) {
      wire::Message fail = simple("fail");
      for (const char* key : {"search", "unit", "fence"}) fail.header[key] = message.header[key];
      fail.header["error"] = error_to_json(work.error());
      fail.header["retryable"] = false;
      send(fail);
      return;
    }
    const std::lock_guard lock(mutex_);
    for (auto& held : held_) {
      if (same_unit(held->work, work->search.value, unit_name(work->unit)) && !held->cancel) {
        held->work.fence = work->fence;  // granted again: deliver under the newest lease
        if (held->report) held->report->header["fence"] = work->fence.value;
        held->sent = {};
        return;
      }
    }
    held_.push_back(std::make_shared<Held>());
    held_.back()->work = std::move(work).value();
    changed_.notify_one();
  }

  static bool same_unit(const UnitWork& work, const std::string& search, const std::string& unit) {
    return work.search.value == search && unit_name(work.unit) == unit;
  }

  template <typename Function>
  void for_named_unit(const Json& header, const Function& function) {
    const auto search = json_field_or<std::string>(header, "search", "message", "");
    const auto unit = json_field_or<std::string>(header, "unit", "message", "");
    if (!search.ok() || !unit.ok()) return;
    const std::lock_guard lock(mutex_);
    for (auto it = held_.begin(); it != held_.end(); ++it) {
      if (same_unit((*it)->work, *search, *unit)) {
        function(it);
        return;
      }
    }
  }

  void forget(const Json& header) {
    for_named_unit(header, [this](auto it) {
      if ((*it)->state == Held::State::kFinished) held_.erase(it);
    });
  }

  void on_revoke(const Json& header) {
    const auto said = json_field_or<int64_t>(header, "fence", "revoke", INT64_MAX);
    const int64_t fence = said.ok() ? *said : INT64_MAX;
    for_named_unit(header, [this, fence](auto it) {
      if ((*it)->work.fence.value > fence) return;  // it was granted again after that revoke
      (*it)->cancel = true;
      if ((*it)->state != Held::State::kRunning) held_.erase(it);
    });
  }

  milliseconds time_to_next_step() const {
    const auto deadline = welcomed_ ? next_heartbeat_ : next_hello_;
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - SteadyClock::now()) + milliseconds(1);
    return std::clamp(left, milliseconds(1), milliseconds(wire::kHeartbeatMs));
  }

  void step(SteadyClock::time_point now) {
    if (stop_requested_ && !draining_) start_stopping(now);
    if (welcomed_ && now - heard_ > milliseconds(wire::kHeartbeatMs * wire::kLiveness)) {
      spdlog::warn("the coordinator at {} is silent; trying again", options_.coordinator);
      reconnect();
    }
    if (!welcomed_) {
      if (now >= next_hello_) try_again();
      return;
    }
    send_reports(now);
    // With every heartbeat, too: the message may be lost with a connection, and a unit that was
    // granted for these credits may be taken back before it was sent.
    if (now >= next_heartbeat_) announced_credits_ = -1;
    announce_credits();
    if (now >= next_heartbeat_) heartbeat(now);
  }

  // What runs is finished; what has not begun goes back, for somebody else to begin at once.
  void start_stopping(SteadyClock::time_point now) {
    draining_ = true;
    stop_deadline_ = now + options_.grace;
    std::vector<wire::Message> given_back;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& held : held_) {
        if (held->state != Held::State::kQueued) continue;
        given_back.push_back(unit_message("give_back", epoch_, held->work));
      }
      std::erase_if(held_, [](const auto& held) { return held->state == Held::State::kQueued; });
    }
    if (!welcomed_) return;  // nobody to give it to; the lease runs out
    announce_credits();      // first, or it would come straight back
    for (const auto& message : given_back) send(message);
  }

  // A socket whose key was refused is dead. The operator may allow the key later.
  void try_again() {
    const auto refusal = socket_.refusal();
    if (!refusal.has_value()) return say_hello();
    spdlog::error("{}; {}", refusal->message, refusal->hint);
    reconnect();
  }

  // A socket of its own for every attempt: no message of the old conversation can arrive late.
  void reconnect() {
    socket_ = Socket(context_, Socket::Kind::kDealer);
    if (const Status connected = connect(); !connected.ok()) {
      spdlog::error("{}", connected.error().message);
    }
    heard_ = SteadyClock::now();
    say_hello();
  }

  void send_reports(SteadyClock::time_point now) {
    std::vector<wire::Message> due;
    {
      const std::lock_guard lock(mutex_);
      for (auto it = held_.begin(); it != held_.end();) {
        auto& held = *it;
        const bool is_due = held->report && now - held->sent >= kResend;
        if (is_due) {
          due.push_back(*held->report);
          held->sent = now;
        }
        // A failure is told once: if it is lost, the lease runs out.
        it = is_due && held->report->type == "fail" ? held_.erase(it) : std::next(it);
      }
    }
    for (const auto& message : due) send(message);
  }

  void announce_credits() {
    int busy = 0;
    {
      const std::lock_guard lock(mutex_);
      busy = static_cast<int>(std::count_if(held_.begin(), held_.end(), [](const auto& held) {
        return held->state != Held::State::kFinished;
      }));
    }
    const int credits = draining_ ? 0 : std::max(0, options_.credits - busy);
    if (credits == announced_credits_ && credits == 0) return;
    if (credits == announced_credits_ && busy == announced_busy_) return;
    announced_credits_ = credits;
    announced_busy_ = busy;
    wire::Message ready = simple("ready");
    ready.header["credits"] = credits;
    ready.header["models"] = runner_->models();
    send(ready);
  }

  void heartbeat(SteadyClock::time_point now) {
    wire::Message message = simple("heartbeat");
    message.header["units"] = Json::array();
    message.header["models"] = runner_->models();
    {
      const std::lock_guard lock(mutex_);
      for (const auto& held : held_) {
        if (held->cancel) continue;
        message.header["units"].push_back({{"search", held->work.search.value},
                                           {"unit", unit_name(held->work.unit)},
                                           {"fence", held->work.fence.value}});
      }
    }
    send(message);
    next_heartbeat_ = now + milliseconds(wire::kHeartbeatMs);
  }

  bool done() {
    if (!draining_) return false;
    const std::lock_guard lock(mutex_);
    if (held_.empty()) return true;
    if (!stop_requested_ || SteadyClock::now() < stop_deadline_) return false;
    for (auto& held : held_) held->cancel = true;
    return true;
  }

  const ServiceOptions options_;
  const std::unique_ptr<UnitRunner> runner_;
  const std::string epoch_;
  const int wake_fd_;
  ZmqContext context_;
  Socket socket_;

  std::mutex mutex_;  // guards held_ and finishing_
  std::condition_variable changed_;
  std::list<std::shared_ptr<Held>> held_;  // shared with the compute thread while it runs one
  bool finishing_ = false;
  std::thread compute_;

  std::atomic<bool> stop_requested_{false};
  bool draining_ = false;
  bool welcomed_ = false;
  int announced_credits_ = -1;
  int announced_busy_ = -1;
  milliseconds back_off_ = kFirstBackOff;
  SteadyClock::time_point heard_;
  SteadyClock::time_point next_hello_;
  SteadyClock::time_point next_heartbeat_;
  SteadyClock::time_point stop_deadline_;
};

WorkerService::WorkerService(ServiceOptions options, std::unique_ptr<UnitRunner> runner)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(runner))) {}
WorkerService::~WorkerService() = default;

Status WorkerService::run() { return impl_->run(); }
void WorkerService::request_stop() { impl_->request_stop(); }

}  // namespace bitalloc
