// The worker's protocol over real sockets, against a coordinator played by the test. The runner
// computes nothing: what is tested is what travels.
#include "worker/service.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "common/fingerprint.h"
#include "common/tokens.h"

namespace bitalloc {
namespace {

using namespace std::chrono_literals;

SearchSpec small_spec() {
  SearchSpec spec;
  spec.model = {"/models/m", "m", "llama", "w", "c", 2, 100};
  spec.sites = {{"model.layers.0.self_attn", 0, 64, 64}, {"model.layers.1.self_attn", 1, 64, 64}};
  spec.candidates = {*parse_candidate("fp8"), *parse_candidate("nvfp4")};
  spec.sequences = 2;
  spec.length = 4;
  spec.batch_sequences = 2;
  spec.tokens_sha256 = "t";
  return spec;
}

// Sums that depend on the unit alone. Blocks while `gate` is closed.
class CountingRunner : public UnitRunner {
 public:
  Result<UnitResult> run(const UnitWork& work, const std::atomic<bool>& cancel) override {
    ++runs;
    while (!gate) {
      if (cancel) return cancelled("told to stop");
      std::this_thread::sleep_for(1ms);
    }
    if (layers > 0) BA_RETURN_IF_ERROR(run_layers(cancel));
    if (fail) return mismatch("another model", "model.path");
    UnitResult result;
    result.unit = work.unit;
    result.sums.assign(4, static_cast<double>(work.unit.row_begin));
    result.tokens = {4, 4};
    return result;
  }
  Json capabilities() const override { return {{"device", "cpu"}, {"threads", 1}}; }
  std::vector<std::string> models() const override { return {"w"}; }

  static inline std::atomic<int> runs{0};
  static inline std::atomic<int> layers{0};  // that a unit runs, one after the other
  static inline std::atomic<int> layers_begun{0};
  static inline std::atomic<int> layers_allowed{0};  // to end
  static inline std::atomic<bool> gate{true};
  static inline std::atomic<bool> fail{false};

 private:
  // As a scorer does: it looks at `cancel` between two layers.
  static Status run_layers(const std::atomic<bool>& cancel) {
    for (int layer = 0; layer < layers; ++layer) {
      if (cancel) return cancelled("told to stop");
      ++layers_begun;
      while (layers_allowed <= layer) std::this_thread::sleep_for(1ms);
    }
    return {};
  }
};

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    CountingRunner::runs = 0;
    CountingRunner::gate = true;
    CountingRunner::fail = false;
    CountingRunner::layers = 0;
    CountingRunner::layers_begun = 0;
    CountingRunner::layers_allowed = 0;
    endpoint_ = "ipc://" + testing::TempDir() + "bitalloc_service_test.sock";
    listen();
    ServiceOptions options;
    options.coordinator = endpoint_;
    options.grace = 2s;
    service_ = std::make_unique<WorkerService>(options, std::make_unique<CountingRunner>());
    finished_ = std::async(std::launch::async, [this] { return service_->run().ok(); });
  }

  void TearDown() override {
    CountingRunner::gate = true;
    CountingRunner::layers_allowed = 1'000;
    service_->request_stop();
    EXPECT_TRUE(finished_.get());
  }

  void listen() {
    router_.reset();
    knows_worker_ = false;
    router_ = std::make_unique<Socket>(context_, Socket::Kind::kRouter);
    for (int i = 0; i < 100; ++i) {  // the address of a closed socket is free a moment later
      if (router_->bind(endpoint_).ok()) return;
      std::this_thread::sleep_for(20ms);
    }
    FAIL() << "cannot listen";
  }

  // The next message of this type; answers `hello` and heartbeats on the way.
  wire::Message expect(const std::string& type, std::chrono::milliseconds patience = 10s) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < deadline) {
      if (!*router_->wait(50)) continue;
      auto received = *router_->receive();
      if (!received) continue;
      EXPECT_FALSE(received->error.has_value());
      peer_ = received->peer;
      const wire::Message& message = received->message;
      if (message.type == "hello") {
        knows_worker_ = true;
        send(wire::ok_reply(message));
      } else if (!knows_worker_) {
        send(wire::error_reply(message, not_found("unknown epoch")));
      } else if (message.type == "heartbeat") {
        send({"heartbeat", "", {}, {}});
      }
      if (message.type == type) return message;
    }
    ADD_FAILURE() << "no " << type;
    return {};
  }

  void send(const wire::Message& message) { EXPECT_TRUE(router_->send(message, peer_).ok()); }

  void grant(int64_t row, int64_t fence) {
    const SearchSpec spec = small_spec();
    const TokenSet tokens{2, 4, std::vector<int32_t>(8, 1), std::vector<uint8_t>(8, 1)};
    const std::vector<float> amax(4, 448.0f);
    const UnitId unit{UnitKind::kScore, BatchIndex(0), row, row + 1};
    send({"unit",
          "",
          {{"search", "s"},
           {"unit", unit_name(unit)},
           {"fence", fence},
           {"lease_ms", 1000},
           {"spec", to_json(spec)}},
          {ids_to_blob(tokens), mask_to_blob(tokens),
           std::string(reinterpret_cast<const char*>(amax.data()), amax.size() * 4)}});
  }

  void acknowledge(const wire::Message& result) {
    wire::Message ack{"ack", "", {}, {}};
    for (const char* key : {"search", "unit", "fence"}) ack.header[key] = result.header[key];
    send(ack);
  }

  ZmqContext context_;
  std::string endpoint_;
  std::string peer_;
  bool knows_worker_ = false;
  std::unique_ptr<Socket> router_;
  std::unique_ptr<WorkerService> service_;
  std::future<bool> finished_;
};

TEST_F(ServiceTest, AUnitBecomesAResult) {
  const wire::Message hello = expect("hello");
  EXPECT_EQ(hello.header["device"], "cpu");
  EXPECT_EQ(hello.header["protocol"], Json::array({1}));
  EXPECT_EQ(hello.header["numerics_version"], kNumericsVersion);
  EXPECT_EQ(hello.header["models"], Json::array({"w"}));
  const wire::Message ready = expect("ready");
  EXPECT_EQ(ready.header["credits"], 2);
  EXPECT_EQ(ready.header["models"], Json::array({"w"}));
  grant(1, 7);
  const wire::Message result = expect("result");
  EXPECT_EQ(result.header["unit"], "score/0/1-2");
  EXPECT_EQ(result.header["fence"], 7);
  EXPECT_EQ(result.header["numerics_version"], kNumericsVersion);
  const auto unpacked = unpack_unit_result(*parse_unit_name("score/0/1-2"), result.blobs.at(0));
  EXPECT_EQ(unpacked->sums, std::vector<double>(4, 1.0));
  acknowledge(result);
}

// A `ready` that is lost, or whose unit is taken back before it is sent, must not leave the worker
// idle for ever.
TEST_F(ServiceTest, SaysItsCreditsAgainWhenNothingHasChanged) {
  EXPECT_EQ(expect("ready").header["credits"], 2);
  EXPECT_EQ(expect("ready").header["credits"], 2);
}

TEST_F(ServiceTest, AResultIsSentAgainUntilAcknowledged) {
  expect("ready");
  grant(0, 1);
  const wire::Message first = expect("result");
  const wire::Message second = expect("result");
  EXPECT_EQ(first.blobs, second.blobs);
  EXPECT_EQ(CountingRunner::runs, 1);
  acknowledge(second);
}

TEST_F(ServiceTest, ANewCoordinatorGetsHelloAndTheOpenResult) {
  expect("ready");
  grant(0, 1);
  expect("result");
  listen();  // the old coordinator is gone without an acknowledgement
  expect("hello", 20s);
  const wire::Message result = expect("result");
  EXPECT_EQ(CountingRunner::runs, 1);
  acknowledge(result);
}

TEST_F(ServiceTest, UnknownEpochSaysHelloAgain) {
  expect("ready");
  knows_worker_ = false;
  expect("hello");
  expect("ready");
}

TEST_F(ServiceTest, ARevokedUnitStopsWithoutAResult) {
  CountingRunner::gate = false;
  expect("ready");
  grant(0, 1);
  while (CountingRunner::runs == 0) std::this_thread::sleep_for(1ms);
  send({"revoke", "", {{"search", "s"}, {"unit", "score/0/0-1"}, {"fence", 1}}, {}});
  // Credits are back although the gate never opened: the runner saw `cancel`.
  while (expect("ready").header["credits"] != 2) {
  }
  grant(1, 2);
  CountingRunner::gate = true;
  EXPECT_EQ(expect("result").header["unit"], "score/0/1-2");
}

// The unit is in its third layer when the revoke comes: there is no fourth.
TEST_F(ServiceTest, ARevokedUnitStopsWithinOneLayer) {
  CountingRunner::layers = 50;
  CountingRunner::layers_allowed = 2;
  expect("ready");
  grant(0, 1);
  while (CountingRunner::layers_begun < 3) std::this_thread::sleep_for(1ms);
  while (expect("heartbeat").header["units"].empty()) {
  }
  send({"revoke", "", {{"search", "s"}, {"unit", "score/0/0-1"}, {"fence", 1}}, {}});
  while (!expect("heartbeat").header["units"].empty()) {  // until it has heard of the revoke
  }
  CountingRunner::layers_allowed = 1'000;
  while (expect("ready").header["credits"] != 2) {
  }
  EXPECT_EQ(CountingRunner::layers_begun, 3);
}

// The unit went to somebody else and came back; the first revoke arrives last.
TEST_F(ServiceTest, ARevokeOfAnOlderLeaseDoesNotStopTheNewerOne) {
  CountingRunner::gate = false;
  expect("ready");
  grant(0, 5);
  send({"revoke", "", {{"search", "s"}, {"unit", "score/0/0-1"}, {"fence", 4}}, {}});
  while (expect("heartbeat").header["units"].empty()) {
  }
  CountingRunner::gate = true;
  const wire::Message result = expect("result");
  EXPECT_EQ(result.header["fence"], 5);
  acknowledge(result);
}

TEST_F(ServiceTest, AFailureSaysWhetherToRetry) {
  CountingRunner::fail = true;
  expect("ready");
  grant(0, 1);
  const wire::Message fail = expect("fail");
  EXPECT_EQ(fail.header["retryable"], false);
  EXPECT_EQ(fail.header["error"]["code"], "mismatch");
}

TEST_F(ServiceTest, AUnitThatIsNoneIsRefused) {
  expect("ready");
  send({"unit", "", {{"search", "s"}, {"unit", "score/0/0-1"}, {"fence", 1}}, {}});
  EXPECT_EQ(expect("fail").header["retryable"], false);
}

TEST_F(ServiceTest, DrainFinishesWhatIsHeldAndSaysBye) {
  expect("ready");
  grant(0, 1);
  send({"drain", "", {}, {}});
  acknowledge(expect("result"));
  expect("bye");
}

// SIGTERM: what runs is finished and delivered, what has not begun is given back at once.
TEST_F(ServiceTest, StopGivesBackWhatHasNotBegunAndFinishesWhatRuns) {
  CountingRunner::gate = false;
  expect("ready");
  grant(0, 1);
  while (CountingRunner::runs == 0) std::this_thread::sleep_for(1ms);
  grant(1, 2);
  while (expect("heartbeat").header["units"].size() < 2) {
  }
  service_->request_stop();
  const wire::Message back = expect("give_back");
  EXPECT_EQ(back.header["unit"], "score/0/1-2");
  EXPECT_EQ(back.header["fence"], 2);
  CountingRunner::gate = true;
  const wire::Message result = expect("result");
  EXPECT_EQ(result.header["unit"], "score/0/0-1");
  acknowledge(result);
  expect("bye");
  EXPECT_EQ(CountingRunner::runs, 1);
}

TEST_F(ServiceTest, StopWaitsForTheRunningUnitNoLongerThanTheGraceTime) {
  CountingRunner::gate = false;
  expect("ready");
  grant(0, 1);
  while (CountingRunner::runs == 0) std::this_thread::sleep_for(1ms);
  service_->request_stop();
  expect("bye", 10s);
}

}  // namespace
}  // namespace bitalloc
