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
  Json expected = *allocate("s", search.spec, fingerprint(search.spec), expected_table(search), 6,
                            {.with_scores = true});
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

// Units that were acknowledged before the kill are not handed out after it, and the scores are
// those of an undisturbed run.
TEST_F(Service, KilledHalfWayItGoesOnWhereItWas) {
  const SmallSearch search = small_search(8, 8, true);
  ASSERT_TRUE(submit(search).ok());
  const auto one = worker("one", 15);
  const auto two = worker("two", 15);
  std::set<std::string> again;
  for (const int64_t half : {8, 16, 24}) {
    wait_for_done_units("s", half);
    coordinator_.signal(SIGKILL);
    coordinator_.wait();
    std::set<std::string> acknowledged = one->acknowledged();
    acknowledged.merge(two->acknowledged());
    const size_t from_one = one->received().size();
    const size_t from_two = two->received().size();
    coordinator_ = start_coordinator(dir_, {"--take-over"});
    wait_for_done_units("s", half + 4);
    for (const auto& [all, from] :
         {std::pair(one->received(), from_one), {two->received(), from_two}}) {
      for (size_t i = from; i < all.size(); ++i) {
        const std::string unit = all[i].substr(0, all[i].find('#'));
        EXPECT_FALSE(acknowledged.contains(unit)) << unit << " was acknowledged and runs again";
      }
    }
  }
  EXPECT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  EXPECT_EQ(checkpoint(), expected_checkpoint(search, "s"));
}

TEST_F(Service, RedisKilledHalfWayLosesNothing) {
  const SmallSearch search = small_search(8, 8);
  ASSERT_TRUE(submit(search).ok());
  const auto one = worker("one", 10);
  wait_for_done_units("s", 8);
  redis_.signal(SIGKILL);
  redis_.wait();
  const size_t acknowledged = one->acknowledged().size();
  pause_ms(300);
  EXPECT_LE(one->acknowledged().size(), acknowledged + 2);  // acks that were on their way
  const Json info = call(dir_, "info")->header;
  EXPECT_NE(info["redis"]["detail"].get<std::string>().find("lost"), std::string::npos) << info;
  EXPECT_EQ(call(dir_, "pause", {{"id", "s"}}).error().code, ErrorCode::kUnavailable);
  redis_ = start_redis(dir_);
  EXPECT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  EXPECT_EQ(checkpoint(), expected_checkpoint(search, "s"));
}

TEST_F(Service, WorkersThatDieAndRepeatThemselvesChangeNothing) {
  const SmallSearch search = small_search(8, 8);
  ASSERT_TRUE(submit(search).ok());
  FakeWorkerOptions twice;
  twice.endpoint = worker_endpoint(dir_);
  twice.epoch = "twice";
  twice.send_twice = true;
  const FakeWorker repeats(twice);
  for (int i = 0; i < 3; ++i) {
    const auto dies = worker("dies" + std::to_string(i), 20);
    pause_ms(30);
  }
  const Json status = wait_for_state(dir_, "s", "done");
  EXPECT_EQ(status["state"], "done");
  EXPECT_EQ(status["conflicts"], 0);
  EXPECT_EQ(checkpoint(), expected_checkpoint(search, "s"));
}

TEST_F(Service, FailureOfAUnitIsShown) {
  ASSERT_TRUE(submit(small_search(2, 2)).ok());
  FakeWorkerOptions options;
  options.endpoint = worker_endpoint(dir_);
  options.epoch = "bad";
  options.fail_code = "invalid_argument";
  const FakeWorker bad(options);
  const Json status = wait_for_state(dir_, "s", "failed");
  EXPECT_EQ(status["error"]["code"], "invalid_argument");
  const std::string message = status["error"]["message"];
  EXPECT_NE(message.find("2 of 2 units failed"), std::string::npos) << message;
  EXPECT_NE(message.find("made to fail"), std::string::npos) << message;
  EXPECT_EQ(status["units"]["failed"], 2);
  ASSERT_EQ(status["failed_units"].size(), 2u);
  EXPECT_EQ(status["failed_units"][0]["worker"], "bad");
  const auto assignment = call(dir_, "assignment", {{"id", "s"}});
  EXPECT_EQ(assignment.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(assignment.error().message.find("0 % done"), std::string::npos);
}

// Set aside means on disk: after kill -9 the unit is still known with its error, the others go on,
// and the search submitted again tries it again.
TEST_F(Service, PoisonUnitSurvivesAKillAndIsTriedAgainWhenSubmitted) {
  const SmallSearch search = small_search(4, 4);
  ASSERT_TRUE(submit(search).ok());
  FakeWorkerOptions options;
  options.endpoint = worker_endpoint(dir_);
  options.epoch = "bad";
  options.credits = 1;
  options.fail_code = "invalid_argument";
  options.fail_first = 1;
  options.unit_ms = 100;
  auto bad = std::make_unique<FakeWorker>(options);
  wait_for_done_units("s", 1);
  bad.reset();
  restart(SIGKILL);
  Json status = call(dir_, "status", {{"id", "s"}})->header;
  ASSERT_EQ(status["units"]["failed"], 1) << status;
  EXPECT_EQ(status["failed_units"][0]["error"]["message"], "made to fail");
  const auto good = worker("good");
  status = wait_for_state(dir_, "s", "failed");
  EXPECT_EQ(status["units"]["done"], status["units"]["total"].get<int>() - 1);
  ASSERT_TRUE(submit(search).ok());
  EXPECT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  EXPECT_EQ(checkpoint(), expected_checkpoint(search, "s"));
}

TEST_F(Service, APeerOfAnotherProtocolIsToldWhoMustBeUpdated) {
  const auto client = call(dir_, "info", {{"protocol", {98, 99}}});
  EXPECT_EQ(client.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(client.error().hint, "update the coordinator");
  EXPECT_EQ(call(dir_, "info", {{"protocol", {1, 99}}})->header["protocol"], 1);

  ZmqContext context;
  Socket worker(context, Socket::Kind::kDealer);
  ASSERT_TRUE(worker.connect(worker_endpoint(dir_)).ok());
  const auto hello = [&](const Json& protocol) {
    EXPECT_TRUE(worker.send({"hello", "h", {{"epoch", "w"}, {"protocol", protocol}}, {}}).ok());
    EXPECT_TRUE(*worker.wait(5'000));
    return (*worker.receive())->message;
  };
  const wire::Message refused = hello({0});
  EXPECT_EQ(refused.type, "error");
  EXPECT_EQ(refused.header["code"], "unsupported");
  EXPECT_EQ(refused.header["hint"], "update the worker w");
  EXPECT_EQ(call(dir_, "info")->header["workers"], 0);
  EXPECT_EQ(hello({0, 1}).header["protocol"], 1);
}

// A release whose scores differ joins the fleet: it gets nothing to do, and the search says why.
TEST_F(Service, AWorkerOfAnotherNumericsVersionIsLeftOut) {
  const SmallSearch search = small_search(3, 4);
  ASSERT_TRUE(submit(search).ok());
  FakeWorkerOptions options;
  options.endpoint = worker_endpoint(dir_);
  options.epoch = "old";
  options.hello = {{"numerics_version", kNumericsVersion + 1}};
  const FakeWorker old(options);
  std::string why;
  for (int i = 0; i < 500 && why.find("numerics version") == std::string::npos; ++i) {
    why = call(dir_, "status", {{"id", "s"}})->header["why_pending"].dump();
    pause_ms(10);
  }
  EXPECT_NE(why.find("worker old computes with numerics version 2"), std::string::npos) << why;
  const auto good = worker("good");
  EXPECT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  EXPECT_TRUE(old.received().empty());
}

// Two leases of one unit, with real messages: the slow worker hears a revoke, the other's result
// counts.
TEST_F(Service, StragglerIsRunAgainByAnIdleWorker) {
  const SmallSearch search = small_search(4, 4);
  ASSERT_TRUE(submit(search).ok());
  FakeWorkerOptions options;
  options.endpoint = worker_endpoint(dir_);
  options.epoch = "slow";
  options.credits = 1;
  options.unit_ms = 600'000;
  const FakeWorker slow(options);
  for (int i = 0; i < 500 && slow.received().empty(); ++i) pause_ms(10);
  const auto fast = worker("fast");
  const Json status = wait_for_state(dir_, "s", "done", 60'000);
  EXPECT_EQ(status["state"], "done") << status;
  EXPECT_EQ(status["units"]["speculated"], 1);
  EXPECT_EQ(checkpoint(), expected_checkpoint(search, "s"));
}

TEST_F(Service, BadSubmissionsAreRefusedByName) {
  const SmallSearch good = small_search(3, 4);
  ASSERT_TRUE(submit(good).ok());
  EXPECT_EQ(submit(good)->header["created"], false);
  const auto refused = [&](auto change, const std::string& id = "other") {
    SmallSearch search = small_search(3, 4);
    change(search);
    const auto answer = submit(search, id);
    return answer.ok() ? Error{ErrorCode::kInternal, "accepted", "", ""} : answer.error();
  };
  const Error weights = refused([](auto& s) { s.spec.model.weights_sha256 = "x"; }, "s");
  EXPECT_EQ(weights.code, ErrorCode::kMismatch);
  EXPECT_NE(weights.message.find("different: model weights"), std::string::npos) << weights.message;
  const Error vocabulary = refused([](auto& s) { s.tokens.input_ids[9] = 500; });
  EXPECT_NE(vocabulary.message.find("input_ids[1, 1] is 500"), std::string::npos)
      << vocabulary.message;
  EXPECT_EQ(refused([](auto& s) { s.tokens.input_ids[9] = 7; }).field, "tokens");
  EXPECT_EQ(refused([](auto& s) { s.tokens.mask.pop_back(); }).code, ErrorCode::kInvalidArgument);
  const Error budget = refused([](auto& s) { s.spec.effective_bits = 4.4; });
  EXPECT_EQ(budget.code, ErrorCode::kInfeasible);
  EXPECT_NE(budget.hint.find("4.5 to 8"), std::string::npos) << budget.hint;
  EXPECT_EQ(refused([](auto& s) { s.spec.dtype = "int3"; }).field, "dtype");
  EXPECT_EQ(refused([](auto&) {}, "../evil").field, "id");
  SmallSearch huge = small_search(3, 4);
  huge.spec.sequences = 1'000'000;
  huge.spec.batch_sequences = 1;
  EXPECT_EQ(submit(huge, "huge").error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(call(dir_, "status", {{"id", "nobody"}}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(call(dir_, "status").error().field, "status.id");
  EXPECT_EQ(call(dir_, "list")->header["searches"].size(), 1u);

  const auto unnamed = submit(good, "");
  ASSERT_TRUE(unnamed.ok());
  EXPECT_EQ(unnamed->header["id"], "small-" + fingerprint(good.spec).sha256.substr(0, 10));
}

// Raw frames to either endpoint; the service answers with an error and goes on.
TEST_F(Service, MalformedMessagesGetAnErrorReply) {
  const std::string big(wire::kMaxHeaderBytes + 1, ' ');
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"", "BA1", "no such thing", "c", "{}"}, "unsupported"},
      {{"", "BA9", "info", "c", "{}"}, "unsupported"},
      {{"", "BA1", "info", "c", "{\"a\":"}, "invalid_argument"},
      {{"", "BA1", "info", "c", "[1]"}, "invalid_argument"},
      {{"", "BA1", "info", "c", big}, "resource_exhausted"},
      {{"", "BA1"}, "invalid_argument"},
      {{"x", "BA1", "info", "c", "{}"}, "invalid_argument"},
      {{"", "BA1", "rebudget", "c", R"({"id": "s", "budgets": "many"})"}, "invalid_argument"},
      {{"", "BA1", "result", "c", R"({"epoch": "e", "search": "s", "unit": "x", "fence": 1})"},
       ""}};
  void* context = zmq_ctx_new();
  for (const std::string& endpoint : {client_endpoint(dir_), worker_endpoint(dir_)}) {
    void* socket = zmq_socket(context, ZMQ_DEALER);
    const int timeout_ms = 3'000;
    const int linger = 0;
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    ASSERT_EQ(zmq_connect(socket, endpoint.c_str()), 0);
    for (const auto& [frames, code] : cases) {
      for (size_t i = 0; i < frames.size(); ++i) {
        zmq_send(socket, frames[i].data(), frames[i].size(),
                 i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
      }
      std::vector<std::string> reply;
      int more = 1;
      while (more != 0) {
        char buffer[4096];
        const int bytes = zmq_recv(socket, buffer, sizeof buffer, 0);
        ASSERT_GE(bytes, 0) << "no answer to " << frames[2 < frames.size() ? 2 : 0];
        reply.emplace_back(buffer, bytes);
        size_t size = sizeof more;
        zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
      }
      ASSERT_EQ(reply.size(), 5u);
      EXPECT_EQ(reply[2], "error");
      if (!code.empty() && endpoint == client_endpoint(dir_)) {
        EXPECT_EQ(Json::parse(reply[4])["code"], code) << reply[4];
      }
    }
    zmq_close(socket);
  }
  zmq_ctx_term(context);
  EXPECT_TRUE(call(dir_, "info").ok());
}

// Else the worker would send it again for ever, and keep the unit with its heartbeats.
TEST_F(Service, CutResultFreesItsUnit) {
  const SmallSearch search = small_search(2, 2);
  ASSERT_TRUE(submit(search).ok());
  ZmqContext context;
  Socket socket(context, Socket::Kind::kDealer);
  ASSERT_TRUE(socket.connect(worker_endpoint(dir_)).ok());
  const auto say = [&](const std::string& type, Json header, std::vector<std::string> blobs = {}) {
    header["epoch"] = "cutter";
    ASSERT_TRUE(socket.send({type, "c", header, std::move(blobs)}).ok());
  };
  const auto wait_for = [&](const std::string& type) {
    Json header;
    for (bool found = false; !found && *socket.wait(5'000);) {
      const auto received = *socket.receive();
      if (received) header = received->message.header;
      found = received && received->message.type == type;
    }
    return header;
  };
  say("hello", Json::object());
  say("ready", {{"credits", 1}});
  const Json unit = wait_for("unit");
  ASSERT_TRUE(unit.contains("fence")) << unit;
  const Json lease = {{"search", unit["search"]}, {"unit", unit["unit"]}, {"fence", unit["fence"]}};
  say("result", lease, {"cut"});
  EXPECT_EQ(wait_for("revoke")["unit"], unit["unit"]);
  EXPECT_EQ(wait_for("error")["code"], "invalid_argument");
  const auto good = worker("good");
  const Json status = wait_for_state(dir_, "s", "done");
  EXPECT_EQ(status["state"], "done") << status;
  EXPECT_EQ(checkpoint(), expected_checkpoint(search, "s"));
}

TEST_F(Service, WatchTellsEveryStepUntilTheEnd) {
  ASSERT_TRUE(submit(small_search(6, 4)).ok());
  ZmqContext context;
  Socket socket(context, Socket::Kind::kDealer);
  ASSERT_TRUE(socket.connect(client_endpoint(dir_)).ok());
  ASSERT_TRUE(socket.send({"watch", "w", {{"id", "s"}}, {}}).ok());
  const auto one = worker("one", 50);
  int events = 0;
  double progress = 0;
  wire::Message last;
  while (last.type != "ok") {
    ASSERT_TRUE(*socket.wait(5'000));
    auto received = socket.receive();
    if (!received->has_value()) continue;
    last = (*received)->message;
    EXPECT_EQ(last.correlation_id, "w");
    if (last.type != "event") continue;
    ++events;
    EXPECT_GE(last.header["status"]["progress"], progress);
    progress = last.header["status"]["progress"];
  }
  EXPECT_EQ(last.header["state"], "done");
  EXPECT_GE(events, 3);  // 600 ms of work, at most 5 a second
  EXPECT_LE(events, 12);
}

TEST_F(Service, PauseResumeCancelDelete) {
  const SmallSearch search = small_search(8, 8);
  ASSERT_TRUE(submit(search).ok());
  EXPECT_EQ(call(dir_, "pause", {{"id", "s"}})->header["state"], "paused");
  const auto one = worker("one");
  pause_ms(100);
  EXPECT_TRUE(one->received().empty());
  EXPECT_EQ(call(dir_, "reprioritize", {{"id", "s"}, {"priority", 4}})->header["priority"], 4);
  restart(SIGKILL);
  EXPECT_EQ(call(dir_, "status", {{"id", "s"}})->header["state"], "paused");
  EXPECT_EQ(call(dir_, "cancel", {{"id", "s"}})->header["state"], "cancelled");
  EXPECT_EQ(call(dir_, "resume", {{"id", "s"}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(submit(search)->header["state"], "cancelled");
  EXPECT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  EXPECT_EQ(call(dir_, "workers")->header["workers"][0]["epoch"], "one");
  EXPECT_TRUE(call(dir_, "delete", {{"id", "s"}}).ok());
  EXPECT_EQ(call(dir_, "status", {{"id", "s"}}).error().code, ErrorCode::kNotFound);
}

TEST_F(Service, CheckpointFileIsThereWhenTheSearchIsDoneAndCarriesIt) {
  coordinator_.signal(SIGTERM);
  EXPECT_EQ(coordinator_.wait(), 0);
  const std::string folder = dir_.path("checkpoints");
  std::filesystem::create_directory(folder);
  coordinator_ = start_coordinator(dir_, {"--checkpoint-dir", folder});
  const SmallSearch search = small_search(3, 4);
  ASSERT_TRUE(submit(search).ok());
  {
    const auto one = worker("one");
    ASSERT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  }
  const std::string file = folder + "/s.checkpoint.json";
  const auto written = read_checkpoint(file);
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_EQ(serialize(*written), expected_checkpoint(search, "s"));
  EXPECT_TRUE(call(dir_, "delete", {{"id", "s"}}).ok());
  EXPECT_FALSE(std::filesystem::exists(file));

  const auto imported = call(dir_, "import", Json::object(), {serialize(*written)});
  ASSERT_TRUE(imported.ok()) << imported.error().message;
  EXPECT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  EXPECT_TRUE(call(dir_, "rebudget", {{"id", "s"}, {"budgets", {5}}}).ok());
  std::string altered = serialize(*written);
  altered[altered.find("tokens") + 12] ^= 1;
  EXPECT_EQ(call(dir_, "import", Json::object(), {altered}).error().code,
            ErrorCode::kInvalidArgument);
}

TEST_F(Service, ValidationJobGivesATable) {
  SmallSearch search = small_search(3, 4);
  search.spec.kind = JobKind::kValidation;
  const Candidate nvfp4 = *parse_candidate("nvfp4");
  search.spec.configurations = {{"reference", {3, Candidate{}}}, {"uniform", {3, nvfp4}}};
  search.spec.candidates.clear();
  ASSERT_TRUE(submit(search, "v").ok());
  const auto one = worker("one");
  ASSERT_EQ(wait_for_state(dir_, "v", "done")["state"], "done");
  const auto scores = call(dir_, "scores", {{"id", "v"}});
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  const Json& rows = scores->header["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["configuration"], "uniform");
  EXPECT_EQ(rows[1]["effective_bits"], 4.5);
  EXPECT_EQ(rows[0]["metrics"].size(), 4u);
  EXPECT_FALSE(call(dir_, "assignment", {{"id", "v"}}).ok());
}

TEST_F(Service, SecondCoordinatorTakesOverWhenAskedAndTheFirstEnds) {
  Child second = start_coordinator(dir_, {"--take-over"});
  ASSERT_TRUE(coordinator_.wait_for(5'000));
  EXPECT_EQ(coordinator_.wait(), 1);
  EXPECT_EQ(call(dir_, "info")->header["pid"], second.pid());
}

TEST(Flags, AreCheckedBeforeAnythingStarts) {
  const TempDir dir;
  const auto exit_code = [&](const std::vector<std::string>& extra) {
    Child child = start_coordinator(dir, extra);
    return child.wait_for(5'000) ? child.wait() : -1;
  };
  EXPECT_EQ(exit_code({"--help"}), 0);
  EXPECT_EQ(exit_code({"--no-such-flag"}), 2);
  EXPECT_EQ(exit_code({"--client-endpoint", "tcp://0.0.0.0:7600"}), 2);
  EXPECT_EQ(exit_code({"--client-endpoint", "nonsense"}), 2);
  EXPECT_EQ(exit_code({"--checkpoint-dir", dir.path("none")}), 2);
  EXPECT_EQ(exit_code({"--redis", "ftp://x"}), 2);
  EXPECT_EQ(exit_code({}), 1);  // no Redis there
  const Child redis = start_redis(dir, {"--appendonly", "no"});
  EXPECT_EQ(exit_code({}), 1);
  Child allowed = start_coordinator(dir, {"--allow-volatile"});
  EXPECT_EQ(call(dir, "info")->header["redis"]["durable"], false);
  allowed.signal(SIGTERM);
  EXPECT_TRUE(allowed.wait_for(2'000));
  EXPECT_EQ(allowed.wait(), 0);
}

}  // namespace
}  // namespace bitalloc::testing
