// The real coordinator binary, a real redis-server and workers that speak the real protocol, under
// faults that are made: kill -9, lost Redis, bad messages.
#include <gtest/gtest.h>
#include <zmq.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "common/checkpoint.h"
#include "solver/allocate.h"
#include "tests/process/fake_worker.h"
#include "tests/process/fake_worker_service.h"

namespace bitalloc::testing {
namespace {

void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// What a search of these inputs must end with, computed here without any service.
ScoreTable expected_table(const SmallSearch& search) {
  const SearchSpec& spec = search.spec;
  ScoreTable table(spec);
  for (const UnitId& unit : table.units()) {
    const bool scores = unit.kind == UnitKind::kScore;
    const TokenSet& all = scores ? search.tokens : search.calibration;
    const int64_t begin = unit.batch.value * spec.batch_sequences;
    const TokenSet batch = slice(all, begin, std::min(begin + spec.batch_sequences, all.sequences));
    table.add(pseudo_result(spec, unit, batch, scores ? table.amax() : std::vector<float>()));
  }
  return table;
}

std::string expected_checkpoint(const SmallSearch& search, const std::string& id) {
  return serialize({id, search.spec, fingerprint(search.spec), expected_table(search)});
}

class Service : public ::testing::Test {
 protected:
  void SetUp() override {
    redis_ = start_redis(dir_);
    coordinator_ = start_coordinator(dir_);
  }
  void TearDown() override {
    if (!HasFailure()) return;
    const std::string command = "tail -n 40 " + dir_.path("coordinator.log") + " >&2";
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << "no log";
  }

  std::unique_ptr<FakeWorker> worker(const std::string& epoch, int unit_ms = 2) {
    FakeWorkerOptions options;
    options.endpoint = worker_endpoint(dir_);
    options.epoch = epoch;
    options.unit_ms = unit_ms;
    return std::make_unique<FakeWorker>(options);
  }
  Result<wire::Message> submit(const SmallSearch& search, const std::string& id = "s") {
    return call(dir_, "submit", {{"id", id}, {"spec", to_json(search.spec)}}, search.blobs());
  }
  std::string checkpoint(const std::string& id = "s") {
    const auto reply = call(dir_, "checkpoint", {{"id", id}});
    return reply.ok() && reply->blobs.size() == 1 ? reply->blobs[0] : "";
  }
  void restart(int signal) {
    coordinator_.signal(signal);
    coordinator_.wait();
    coordinator_ = start_coordinator(dir_);
  }
  Json wait_for_done_units(const std::string& id, int64_t count) {
    Json status;
    for (int i = 0; i < 1'000; ++i) {
      status = call(dir_, "status", {{"id", id}})->header;
      if (status["units"]["done"] >= count) break;
      pause_ms(5);
    }
    return status;
  }

  TempDir dir_;
  Child redis_;
  Child coordinator_;
};

TEST_F(Service, SearchRunsFromSubmitToAssignment) {
  const SmallSearch search = small_search(6, 5, true);
  const auto submitted = submit(search);
  ASSERT_TRUE(submitted.ok()) << submitted.error().message;
  EXPECT_EQ(submitted->header["created"], true);
  EXPECT_EQ(submitted->header["why_pending"], "no worker is connected");
  const auto one = worker("one");
  const auto two = worker("two");
  const Json status = wait_for_state(dir_, "s", "done");
  EXPECT_EQ(status["state"], "done") << status;
  EXPECT_EQ(status["units"]["total"], 2 + 3 * 6);  // ⌈3/2⌉ calibrations, ⌈5/2⌉ batches × 6 sites
  EXPECT_EQ(status["progress"], 1.0);
  EXPECT_EQ(checkpoint(), expected_checkpoint(search, "s"));

  const auto answer = call(dir_, "assignment", {{"id", "s"}, {"scores", true}});
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  Json expected =
      *allocate("s", search.spec, fingerprint(search.spec), expected_table(search), 6, {}, true);
  Json got = answer->header["assignment"];
  expected.erase("solve_ms");
  got.erase("solve_ms");
  EXPECT_EQ(got, expected);
  EXPECT_LE(got["effective_bits"], 6.0);

  const auto budgets = call(
      dir_, "rebudget", {{"id", "s"}, {"budgets", {4.5, 8.0}}, {"pins", {{"layers.2", "bf16"}}}});
  EXPECT_EQ(budgets.error().code, ErrorCode::kInfeasible) << "4.5 bits cannot hold a bf16 site";
  const auto again = call(dir_, "rebudget", {{"id", "s"}, {"budgets", {4.5, 8.0}}});
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->header["assignments"][0]["effective_bits"], 4.5);
  EXPECT_LE(again->header["assignments"][1]["effective_bits"], 8.0);
  EXPECT_GE(call(dir_, "frontier", {{"id", "s"}})->header["frontier"].size(), 2u);
}

}  // namespace
}  // namespace bitalloc::testing
