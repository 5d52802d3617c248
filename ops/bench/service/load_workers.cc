#include "ops/bench/service/load_workers.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <charconv>

#include "common/fingerprint.h"
#include "common/wire.h"

namespace bitalloc::bench {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kResend{5'000};  // as the real worker
constexpr int kMaxFrames = 16;
constexpr const char* kHello = "hello";

// The text between `before` and `after`, the first or the last of its kind.
std::string_view between(std::string_view text, std::string_view before, char after, bool last) {
  const size_t found = last ? text.rfind(before) : text.find(before);
  if (found == std::string_view::npos) return {};
  const size_t begin = found + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

// Keys stand in alphabetical order, and "spec", which may hold anything, between "search" and
// "unit".
std::string_view fence_of(std::string_view header) {
  return between(header, "\"fence\":", ',', false);
}
std::string_view search_of(std::string_view header) {
  return between(header, "\"search\":\"", '"', false);
}
std::string_view unit_of(std::string_view header) {
  return between(header, "\"unit\":\"", '"', true);
}

double ms_between(std::chrono::steady_clock::time_point begin,
                  std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

}  // namespace

LoadWorkers::LoadWorkers(LoadWorkersOptions options, const LoadSearch& search)
    : options_(std::move(options)), search_(search), context_(zmq_ctx_new()) {
  for (const UnitId& unit : search.units) {
    results_[unit_name(unit)] = load_result(search.spec, unit);
  }
  BA_CHECK(zmq_ctx_set(context_, ZMQ_MAX_SOCKETS, options_.workers + 16) == 0, "ZMQ_MAX_SOCKETS");
  thread_ = std::thread([this] { run(); });
}

LoadWorkers::~LoadWorkers() {
  stop_ = true;
  thread_.join();
  zmq_ctx_term(context_);
}

std::set<LoadWorkers::UnitKey> LoadWorkers::acknowledged_units() const {
  const std::lock_guard lock(mutex_);
  return acknowledged_units_;
}

void LoadWorkers::run() {
  connect();
  std::vector<epoll_event> ready(workers_.size());
  while (!stop_) {
    const int count = epoll_wait(epoll_, ready.data(), static_cast<int>(ready.size()), 1);
    for (int i = 0; i < count; ++i) receive_from(ready[static_cast<size_t>(i)].data.u64);
    const auto now = Clock::now();
    send_results(now);
    heartbeats(now);
    if (now >= next_sweep_) {
      send_again(now - kResend, workers_.size());
      next_sweep_ = now + milliseconds(500);
    }
    receive_after_sending();
    in_hand_count_ = std::ssize(in_hand_);
  }
  for (const Worker& worker : workers_) zmq_close(worker.socket);
  ::close(epoll_);
}

void LoadWorkers::connect() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  BA_CHECK(epoll_ >= 0, "epoll");
  for (int i = 0; i < options_.workers; ++i) {
    Worker worker;
    worker.epoch = fmt::format("load-{}-{}", ::getpid(), i);
    worker.socket = zmq_socket(context_, ZMQ_DEALER);
    const int linger = 0;
    BA_CHECK(worker.socket != nullptr, "zmq_socket");
    zmq_setsockopt(worker.socket, ZMQ_LINGER, &linger, sizeof linger);
    BA_CHECK(zmq_connect(worker.socket, options_.endpoint.c_str()) == 0, "zmq_connect");
    int fd = -1;
    size_t size = sizeof fd;
    BA_CHECK(zmq_getsockopt(worker.socket, ZMQ_FD, &fd, &size) == 0, "ZMQ_FD");
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = workers_.size()}};
    BA_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    // Spread, so that not all of them beat at once.
    worker.next_heartbeat = Clock::now() + milliseconds(1'000 * i / options_.workers);
    workers_.push_back(worker);
    say_hello(workers_.back());
    say_ready(workers_.back());
  }
}

// ---- receiving ----------------------------------------------------------------------------------

// ZMQ_FD is edge-triggered, and a send may have eaten the edge of a message.
void LoadWorkers::receive_after_sending() {
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    if (std::exchange(workers_[worker].has_sent, false)) receive_from(worker);
  }
}

void LoadWorkers::receive_from(size_t worker) {
  std::vector<zmq_msg_t> messages(kMaxFrames);
  std::vector<std::string_view> frames;
  for (bool any = true; any;) {
    frames.clear();
    for (zmq_msg_t& message : messages) {
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, workers_[worker].socket, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&message);
        break;
      }
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      if (zmq_msg_more(&message) == 0) break;
    }
    any = frames.size() >= 5;
    if (any) handle(worker, frames);
    for (size_t i = 0; i < frames.size(); ++i) zmq_msg_close(&messages[i]);
  }
}

void LoadWorkers::handle(size_t worker, const std::vector<std::string_view>& frames) {
  const std::string_view type = frames[2];
  const std::string_view header = frames[4];
  if (type == "unit") return on_unit(worker, header);
  if (type == "ack") return on_ack(frames[3]);
  if (type == "revoke") return on_revoke(worker, header);
  if (type == "heartbeat") {
    heartbeat_ms_.add(ms_between(workers_[worker].heartbeat_sent, Clock::now()));
  } else if (type == "ok" && frames[3] == kHello) {
    send_again(Clock::now(), worker);  // the coordinator may be another one
  } else if (type == "error") {
    say_hello(workers_[worker]);  // it does not know us, or no longer
    say_ready(workers_[worker]);
  }
}

void LoadWorkers::on_unit(size_t worker, std::string_view header) {
  Unit unit{worker, std::string(search_of(header)), std::string(unit_of(header)),
            std::string(fence_of(header))};
  if (options_.record) {
    const std::lock_guard lock(mutex_);
    granted_again_ += acknowledged_units_.contains({unit.search, unit.name});
  }
  ++workers_[worker].busy;
  in_hand_.push_back(std::move(unit));
}

void LoadWorkers::on_ack(std::string_view correlation_id) {
  uint64_t id = 0;
  std::from_chars(correlation_id.data(), correlation_id.data() + correlation_id.size(), id);
  const auto node = sent_.extract(id);
  if (node.empty()) return;  // acknowledged before: it was sent twice
  const Sent& sent = node.mapped();
  ack_ms_.add(ms_between(sent.due, Clock::now()));
  if (options_.record) {
    const std::lock_guard lock(mutex_);
    acknowledged_units_.insert({sent.unit.search, sent.unit.name});
  }
  ++acknowledged_;
}

void LoadWorkers::on_revoke(size_t worker, std::string_view header) {
  const std::string_view search = search_of(header);
  const std::string_view name = unit_of(header);
  const auto named = [&](const Unit& unit) {
    return unit.worker == worker && unit.search == search && unit.name == name;
  };
  workers_[worker].busy -= static_cast<int>(std::erase_if(in_hand_, named));
  std::erase_if(sent_, [&](const auto& entry) { return named(entry.second.unit); });
  say_ready(workers_[worker]);
}

// ---- sending ------------------------------------------------------------------------------------

void LoadWorkers::say_hello(Worker& worker) {
  send(worker, "hello", kHello,
       fmt::format(R"({{"epoch":"{}","protocol":[1],"numerics_version":{},"models":["{}"],)"
                   R"("host":"bench","pid":1,"device":"none","threads":1}})",
                   worker.epoch, kNumericsVersion, search_.spec.model.weights_sha256));
}

void LoadWorkers::say_ready(Worker& worker) {
  send(worker, "ready", "",
       fmt::format(R"({{"epoch":"{}","credits":{}}})", worker.epoch,
                   std::max(0, options_.credits - worker.busy)));
}

void LoadWorkers::send_results(Clock::time_point now) {
  const double rate = rate_;
  if (rate == kSaturate) {
    while (!in_hand_.empty()) {
      send_result(std::move(in_hand_.front()), now);
      in_hand_.pop_front();
    }
    return;
  }
  if (rate != paced_) {
    paced_ = rate;
    next_due_ = now;
    overdue_ = 0;
  }
  if (rate <= 0) return;
  const auto gap =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / rate));
  for (; overdue_ > 0 && !in_hand_.empty(); --overdue_) {
    send_result(std::move(in_hand_.front()), now);
    in_hand_.pop_front();
  }
  for (; next_due_ <= now; next_due_ += gap) {
    if (in_hand_.empty()) {
      ++overdue_;
      ++starved_;
      continue;
    }
    send_result(std::move(in_hand_.front()), next_due_);
    in_hand_.pop_front();
  }
}

void LoadWorkers::send_result(Unit unit, Clock::time_point due) {
  Worker& worker = workers_[unit.worker];
  const uint64_t id = next_id_++;
  Sent& sent = sent_.emplace(id, Sent{std::move(unit), due, {}}).first->second;
  transmit(id, sent);
  --worker.busy;
  say_ready(worker);
}

void LoadWorkers::transmit(uint64_t id, Sent& sent) {
  Worker& worker = workers_[sent.unit.worker];
  sent.last_sent = Clock::now();
  send(worker, "result", std::to_string(id),
       fmt::format(R"({{"epoch":"{}","search":"{}","unit":"{}","fence":{},"seconds":0.01}})",
                   worker.epoch, sent.unit.search, sent.unit.name, sent.unit.fence),
       &results_.at(sent.unit.name));
}

// Results of `worker` (or, when there is no such worker, of all) that were sent before that.
void LoadWorkers::send_again(Clock::time_point sent_before, size_t worker) {
  for (auto& [id, sent] : sent_) {
    const bool meant = worker == workers_.size() || worker == sent.unit.worker;
    if (meant && sent.last_sent < sent_before) transmit(id, sent);
  }
}

void LoadWorkers::heartbeats(Clock::time_point now) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (now < worker.next_heartbeat) continue;
    worker.next_heartbeat = now + milliseconds(wire::kHeartbeatMs);
    worker.heartbeat_sent = now;
    std::string units;
    const auto list = [&](const Unit& unit) {
      if (unit.worker != i) return;
      units += fmt::format(R"({}{{"search":"{}","unit":"{}","fence":{}}})",
                           units.empty() ? "" : ",", unit.search, unit.name, unit.fence);
    };
    for (const Unit& unit : in_hand_) list(unit);
    for (const auto& [id, sent] : sent_) list(sent.unit);
    send(worker, "heartbeat", "",
         fmt::format(R"({{"epoch":"{}","units":[{}]}})", worker.epoch, units));
  }
}

// What does not go out is sent again later: results by send_again(), the rest by the next one.
void LoadWorkers::send(Worker& worker, std::string_view type, std::string_view correlation_id,
                       std::string_view header, const std::string* blob) {
  const int more = ZMQ_DONTWAIT | ZMQ_SNDMORE;
  worker.has_sent = true;
  if (zmq_send(worker.socket, "", 0, more) < 0) return;
  zmq_send(worker.socket, wire::kVersion.data(), wire::kVersion.size(), more);
  zmq_send(worker.socket, type.data(), type.size(), more);
  zmq_send(worker.socket, correlation_id.data(), correlation_id.size(), more);
  zmq_send(worker.socket, header.data(), header.size(), blob != nullptr ? more : ZMQ_DONTWAIT);
  if (blob != nullptr) zmq_send(worker.socket, blob->data(), blob->size(), ZMQ_DONTWAIT);
}

}  // namespace bitalloc::bench
