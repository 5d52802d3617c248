#include "tests/process/fake_worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/sha256.h"

namespace bitalloc::testing {
namespace {

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A number in [0, 1) from a text, the same everywhere.
double fraction(const std::string& text) {
  const std::string digits = sha256_hex(text).substr(0, 12);
  return static_cast<double>(std::stoull(digits, nullptr, 16)) / static_cast<double>(1ull << 48);
}

}  // namespace

UnitResult pseudo_result(const SearchSpec& spec, const UnitId& unit, const TokenSet& batch,
                         const std::vector<float>& amax) {
  UnitResult result;
  result.unit = unit;
  const std::string seed = tokens_sha256(batch);
  if (unit.kind == UnitKind::kCalibrate) {
    for (size_t i = 0; i < 2 * spec.sites.size(); ++i) {
      result.amax.push_back(1.0f + static_cast<float>(fraction(fmt::format("{}/{}", seed, i))));
    }
    return result;
  }
  const std::string amax_text = Json(amax).dump();
  for (int64_t row = unit.row_begin; row < unit.row_end; ++row) {
    for (int64_t column = 0; column < spec.num_columns(); ++column) {
      for (int64_t i = 0; i < metrics_per_sequence(spec) * batch.sequences; ++i) {
        result.sums.push_back(
            fraction(fmt::format("{}/{}/{}/{}/{}", seed, row, column, i, amax_text)));
      }
    }
  }
  for (int64_t i = 0; i < batch.sequences; ++i) {
    const auto begin = batch.mask.begin() + i * batch.length;
    result.tokens.push_back(std::count(begin, begin + batch.length, 1));
  }
  return result;
}

FakeWorker::FakeWorker(FakeWorkerOptions options)
    : options_(std::move(options)), socket_(context_, Socket::Kind::kDealer) {
  if (options_.keys.has_value()) socket_.use_curve(*options_.keys);
  BA_CHECK(socket_.connect(options_.endpoint).ok(), "cannot connect");
  thread_ = std::thread([this] { run(); });
}

FakeWorker::~FakeWorker() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void FakeWorker::say_goodbye() {
  bye_ = true;
  thread_.join();
}

std::vector<std::string> FakeWorker::received() const {
  const std::lock_guard lock(mutex_);
  return received_;
}

std::set<std::string> FakeWorker::acknowledged() const {
  const std::lock_guard lock(mutex_);
  return acknowledged_;
}

void FakeWorker::send(const std::string& type, Json header) {
  header["epoch"] = options_.epoch;
  const Status sent = socket_.send({type, "", std::move(header), {}});
  if (!sent.ok()) fmt::print(stderr, "fake worker: {}\n", sent.error().message);
}

void FakeWorker::hello() {
  Json header = {{"host", "test"}, {"pid", 1}, {"device", "none"}, {"threads", 1}};
  header.update(options_.hello);
  send("hello", std::move(header));
  ready();
}

void FakeWorker::ready() {
  const auto busy = std::count_if(held_.begin(), held_.end(), [](auto& h) { return !h.finished; });
  send("ready", {{"credits", std::max<int64_t>(0, options_.credits - busy)}});
}

void FakeWorker::run() {
  hello();
  while (!stop_ && !bye_) {
    if (!*socket_.wait(2)) {
      // Nothing came; the work goes on below.
    }
    for (auto received = socket_.receive(); received.ok() && received->has_value();
         received = socket_.receive()) {
      if (!(*received)->error) handle((*received)->message);
    }
    const int64_t now = now_ms();
    work(now);
    if (now >= next_heartbeat_ms_) {
      Json units = Json::array();
      for (const Held& held : held_) {
        units.push_back({{"search", held.search}, {"unit", held.unit}, {"fence", held.fence}});
      }
      send("heartbeat", {{"units", units}});
      next_heartbeat_ms_ = now + 300;
    }
  }
  if (bye_) {
    send("bye", Json::object());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void FakeWorker::handle(const wire::Message& message) {
  if (message.type == "unit") return take_unit(message);
  if (message.type == "error") {
    if (wire::error_of(message).code == ErrorCode::kNotFound) hello();
    return;
  }
  if (message.type != "ack" && message.type != "revoke") return;
  const std::string unit = message.header.at("unit");
  if (message.type == "ack") {
    const std::lock_guard lock(mutex_);
    acknowledged_.insert(unit);
  }
  std::erase_if(held_, [&](const Held& held) {
    return held.unit == unit && held.search == message.header.at("search");
  });
  ready();
}

void FakeWorker::take_unit(const wire::Message& message) {
  const Json& header = message.header;
  Held held{header.at("search"), header.at("unit"), header.at("fence"), {}, 0, false};
  {
    const std::lock_guard lock(mutex_);
    received_.push_back(fmt::format("{}#{}", held.unit, held.fence));
  }
  std::erase_if(held_, [&](const Held& h) { return h.unit == held.unit; });
  const SearchSpec spec = *search_spec_from_json(header.at("spec"));
  const UnitId unit = *parse_unit_name(held.unit);
  const bool scores = unit.kind == UnitKind::kScore;
  const int64_t length = scores ? spec.length : spec.calibration_length;
  const int64_t sequences = std::ssize(message.blobs[1]) / length;
  const TokenSet batch = *tokens_from_blobs(sequences, length, message.blobs[0], message.blobs[1]);
  std::vector<float> amax(scores ? message.blobs[2].size() / sizeof(float) : 0);
  if (scores) std::memcpy(amax.data(), message.blobs[2].data(), message.blobs[2].size());

  const Json lease = {{"epoch", options_.epoch},
                      {"search", held.search},
                      {"unit", held.unit},
                      {"fence", held.fence}};
  if (!options_.fail_code.empty() && failed_ < options_.fail_first) {
    ++failed_;
    held.report = {"fail", "", lease, {}};
    held.report.header["error"] = {{"code", options_.fail_code}, {"message", "made to fail"}};
    held.report.header["retryable"] = options_.retryable;
  } else {
    held.report = {"result", "r", lease, {pack(pseudo_result(spec, unit, batch, amax))}};
    held.report.header["seconds"] = options_.unit_ms / 1000.0 + 1e-3;
  }
  int64_t free_at = now_ms();  // one unit after the other
  for (const Held& other : held_) {
    if (!other.finished) free_at = std::max(free_at, other.due_ms);
  }
  held.due_ms = free_at + options_.unit_ms;
  held_.push_back(std::move(held));
}

void FakeWorker::work(int64_t now) {
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    if (now < held.due_ms) continue;
    held.finished = true;
    held.due_ms = now + 1'000;
    const bool fail = held.report.type == "fail";
    for (int copy = 0; copy < (options_.send_twice ? 2 : 1); ++copy) {
      const Status sent = socket_.send(held.report);
      if (!sent.ok()) fmt::print(stderr, "fake worker: {}\n", sent.error().message);
    }
    if (fail) held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i--));
    ready();
  }
}

}  // namespace bitalloc::testing
