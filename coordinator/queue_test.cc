// The state machine by hand-made stories: what must follow from which event.
#include "coordinator/queue.h"

#include <gtest/gtest.h>

#include "coordinator/report.h"
#include "coordinator/schedule.h"

namespace bitalloc {
namespace {

// 2 sites × 2 candidates, 3 sequences in batches of 2: score/0 and score/1, each with rows 1 and 0.
SearchSpec small_spec(bool calibrated = false) {
  SearchSpec spec;
  spec.model = {"/models/m", "m", "llama", "w", "c", 2, 100};
  spec.sites = {{"layers.0", 0, 64, 64}, {"layers.1", 1, 64, 64}};
  spec.candidates = {*parse_candidate(calibrated ? "fp8[scale=calibrated]" : "fp8"),
                     *parse_candidate("nvfp4")};
  spec.sequences = 3;
  spec.length = 4;
  spec.batch_sequences = 2;
  spec.tokens_sha256 = "t";
  if (calibrated) {
    spec.calibration_sequences = 2;
    spec.calibration_length = 4;
    spec.calibration_sha256 = "ct";
  }
  return spec;
}

// One site, one sequence: a single unit.
SearchSpec one_unit_spec() {
  SearchSpec spec = small_spec();
  spec.sites.pop_back();
  spec.sequences = 1;
  return spec;
}

SearchRecord record_of(const std::string& id) {
  SearchRecord record;
  record.id = id;
  record.spec = small_spec();
  record.fingerprint = fingerprint(record.spec);
  record.status.state = SearchState::kRunning;
  record.has_tokens = true;
  return record;
}

UnitResult result_of(const SearchSpec& spec, const UnitId& unit, double value = 0.5) {
  UnitResult result;
  result.unit = unit;
  if (unit.kind == UnitKind::kCalibrate) {
    result.amax.assign(2 * spec.sites.size(), static_cast<float>(value));
    return result;
  }
  const int64_t sequences = spec.batch_size(unit.batch);
  result.sums.assign((unit.row_end - unit.row_begin) * spec.num_columns() * sequences, value);
  result.tokens.assign(sequences, 4);
  return result;
}

// Runs the queue with a store that is always there, but answers only when told.
class QueueTest : public ::testing::Test {
 protected:
  template <typename E>
  void handle(E event) {
    for (Action& action : queue_.handle(std::move(event), now_)) {
      if (auto* persist = std::get_if<action::Persist>(&action)) {
        ops_.push_back(std::move(persist->op));
      } else {
        actions_.push_back(std::move(action));
      }
    }
  }
  // Everything that was persisted becomes durable, and what follows from it too.
  void store_all() {
    while (!ops_.empty()) {
      const StoreOp op = ops_.front();
      ops_.erase(ops_.begin());
      handle(StoreDone{op.token, StoreDone::Outcome::kNew, ""});
    }
  }
  template <typename A>
  std::vector<A> taken() {
    std::vector<A> found;
    for (const Action& action : actions_) {
      if (const A* a = std::get_if<A>(&action)) found.push_back(*a);
    }
    std::erase_if(actions_, [](const Action& a) { return std::holds_alternative<A>(a); });
    return found;
  }
  void submit(const std::string& id, const SearchSpec& spec, int64_t priority = 0,
              double share = 1) {
    event::Submit event;
    event.request = ++request_;
    event.record.id = id;
    event.record.spec = spec;
    event.record.fingerprint = fingerprint(spec);
    event.record.status.priority = priority;
    event.record.status.share = share;
    event.record.created_unix = static_cast<int64_t>(request_);
    event.tokens = std::make_shared<SearchTokens>();
    handle(std::move(event));
    store_all();
  }
  void change(const std::string& id, event::Change::Kind kind, int64_t priority = 0) {
    handle(event::Change{++request_, id, kind, priority});
    store_all();
  }
  void hello(const std::string& epoch, int64_t credits = 0) {
    handle(event::WorkerHello{WorkerEpoch(epoch), Json::object()});
    if (credits > 0) ready(epoch, credits);
  }
  void hello_with(const std::string& epoch, Json info, int64_t credits) {
    handle(event::WorkerHello{WorkerEpoch(epoch), std::move(info)});
    ready(epoch, credits);
  }
  void ready(const std::string& epoch, int64_t credits) {
    handle(event::WorkerReady{WorkerEpoch(epoch), credits});
    store_all();
  }
  void deliver(const action::SendUnit& unit, double value = 0.5, double seconds = 1) {
    const Search* search = queue_.find(unit.search);
    handle(event::WorkerResult{unit.worker, unit.search, unit.fence, seconds, "c",
                               result_of(search->spec, unit.unit, value)});
  }
  void fail(const action::SendUnit& unit, ErrorCode code, bool retryable) {
    handle(event::WorkerFail{unit.worker, unit.search, unit.unit, unit.fence,
                             Error{code, "because", "", ""}, retryable});
    store_all();
  }
  void beat(const std::string& epoch, const std::vector<action::SendUnit>& units) {
    event::WorkerHeartbeat event{WorkerEpoch(epoch), {}};
    for (const auto& unit : units) event.units.push_back({unit.search, unit.unit, unit.fence});
    handle(std::move(event));
    store_all();
  }
  // Time goes by, with ticks.
  void pass(TimeMs ms) {
    for (const TimeMs end = now_ + ms; now_ < end;) {
      now_ += std::min<TimeMs>(500, end - now_);
      handle(event::Tick{});
    }
    store_all();
  }
  SearchState state(const std::string& id = "s") { return queue_.find(id)->status.state; }
  int64_t done(const std::string& id = "s") { return queue_.find(id)->table.units_done(); }
  // Computes everything that is granted to `epoch` until nothing is.
  void finish_all(const std::string& epoch) {
    ready(epoch, 4);
    for (auto units = taken<action::SendUnit>(); !units.empty();
         units = taken<action::SendUnit>()) {
      for (const auto& unit : units) deliver(unit);
      store_all();
      ready(epoch, 4);
    }
  }

  Queue queue_;
  TimeMs now_ = 1'000;
  uint64_t request_ = 0;
  std::vector<StoreOp> ops_;
  std::vector<Action> actions_;
};

TEST_F(QueueTest, UnitIsSentAfterItsLeaseIsDurableAndAckedAfterItsResultIs) {
  submit("s", small_spec());
  EXPECT_EQ(state(), SearchState::kQueued);
  hello("w");
  handle(event::WorkerReady{WorkerEpoch("w"), 1});
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  store_all();
  const auto units = taken<action::SendUnit>();
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(unit_name(units[0].unit), "score/0/1-2");  // last rows of the first batch
  EXPECT_EQ(state(), SearchState::kRunning);
  deliver(units[0]);
  EXPECT_TRUE(taken<action::SendAck>().empty());
  EXPECT_EQ(done(), 0);
  store_all();
  EXPECT_EQ(taken<action::SendAck>().size(), 1u);
  EXPECT_EQ(done(), 1);
}

TEST_F(QueueTest, SearchIsDoneOnlyAfterItsCheckpoint) {
  submit("s", small_spec());
  hello("w");
  finish_all("w");
  EXPECT_EQ(done(), 4);
  EXPECT_EQ(state(), SearchState::kRunning);
  ASSERT_EQ(taken<action::WriteCheckpoint>().size(), 1u);
  handle(event::CheckpointWritten{"s"});
  EXPECT_EQ(state(), SearchState::kRunning);
  store_all();
  EXPECT_EQ(state(), SearchState::kDone);
}

// Simulator, seeds 120 and 303: an order that came while `done` was on its way wrote the state
// before it over the `done`.
TEST_F(QueueTest, NoOrderTakesBackADoneThatIsOnItsWay) {
  submit("s", small_spec());
  hello("w");
  finish_all("w");
  handle(event::CheckpointWritten{"s"});
  handle(event::Change{++request_, "s", event::Change::Kind::kPause});
  handle(event::Change{++request_, "s", event::Change::Kind::kReprioritize, 7});
  event::Submit again;
  again.record = record_of("s");
  again.tokens = std::make_shared<SearchTokens>();
  handle(again);
  ASSERT_EQ(ops_.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::get<PutStatus>(ops_[i].change).status.state, SearchState::kDone) << i;
  }
  EXPECT_EQ(std::get<PutStatus>(ops_[2].change).status.priority, 7);
  EXPECT_EQ(std::get<PutSearch>(ops_[3].change).record.status.state, SearchState::kDone);
  EXPECT_EQ(state(), SearchState::kRunning);
  store_all();
  EXPECT_EQ(state(), SearchState::kDone);
}

TEST_F(QueueTest, ScoresWaitForCalibration) {
  submit("s", small_spec(true));
  hello("w", 4);
  auto units = taken<action::SendUnit>();
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(unit_name(units[0].unit), "calibrate/0");
  deliver(units[0]);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  store_all();
  units = taken<action::SendUnit>();
  ASSERT_EQ(units.size(), 3u);  // credits that were left
  EXPECT_EQ(units[0].unit.kind, UnitKind::kScore);
}

TEST_F(QueueTest, WorkerStaysOnItsBatchAndOthersTakeAnother) {
  submit("s", small_spec());
  hello("a", 1);
  hello("b", 1);
  auto units = taken<action::SendUnit>();
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].unit.batch.value, 0);
  EXPECT_EQ(units[1].unit.batch.value, 1);
  deliver(units[1]);
  ready("b", 1);
  const auto next = taken<action::SendUnit>();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].unit.batch.value, 1);
  deliver(next[0]);
  ready("b", 1);  // its batch is used up: shares the other one
  const auto shared = taken<action::SendUnit>();
  ASSERT_EQ(shared.size(), 1u);
  EXPECT_EQ(shared[0].unit.batch.value, 0);
}

TEST_F(QueueTest, LateReadyDoesNotOverfillAWorker) {
  submit("s", small_spec());
  hello("w", 2);
  ready("w", 2);  // said before the two units arrived
  EXPECT_EQ(taken<action::SendUnit>().size(), 2u);
}

TEST_F(QueueTest, LeaseRunsOutUnlessRenewed) {
  submit("s", small_spec());
  hello("a", 1);
  const auto first = taken<action::SendUnit>();
  for (int i = 0; i < 40; ++i) {
    pass(1'000);
    beat("a", first);
  }
  EXPECT_EQ(queue_.find("s")->leased, 1);
  for (int i = 0; i < 31; ++i) {  // it lives, but none of its heartbeats arrives
    pass(1'000);
    ready("a", 0);
  }
  EXPECT_EQ(queue_.find("s")->leased, 0);
  hello("b", 4);  // another batch first, then the unit that was lost
  auto second = taken<action::SendUnit>();
  std::erase_if(second, [&](const auto& unit) { return unit.unit != first[0].unit; });
  ASSERT_EQ(second.size(), 1u);
  EXPECT_GT(second[0].fence, first[0].fence);

  deliver(first[0]);  // late, with the old fence: the first write all the same
  store_all();
  EXPECT_EQ(taken<action::SendAck>().size(), 1u);
  const auto revoked = taken<action::SendRevoke>();
  ASSERT_FALSE(revoked.empty());
  EXPECT_EQ(revoked.back().worker.value, "b");
  deliver(second[0]);
  store_all();
  EXPECT_EQ(taken<action::SendAck>().size(), 1u);
  EXPECT_EQ(done(), 1);
  EXPECT_EQ(queue_.find("s")->conflicts, 0);
}

// The message with the unit was lost while its worker connected again: the worker lives and does
// not list it. Three heartbeats of a second are what the queue waits.
TEST_F(QueueTest, UnitThatItsWorkerDoesNotListIsGivenOutAgain) {
  submit("s", one_unit_spec());
  hello("a", 1);
  const auto lost = taken<action::SendUnit>().at(0);
  for (int i = 0; i < 2; ++i) {
    pass(1'000);
    beat("a", {});
  }
  EXPECT_EQ(queue_.find("s")->leased, 1);
  pass(1'000);
  beat("a", {});
  EXPECT_EQ(queue_.find("s")->leased, 0);
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["retrying"], 0);  // no failure
  ready("a", 1);
  const auto again = taken<action::SendUnit>().at(0);
  EXPECT_EQ(again.unit, lost.unit);
  EXPECT_GT(again.fence, lost.fence);
}

// What was said of the unit was lost: a failure is told once, and then the unit is not listed.
TEST_F(QueueTest, UnitWhoseFailureWasLostIsGivenOutAgain) {
  submit("s", one_unit_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>().at(0);
  for (int i = 0; i < 10; ++i) {
    pass(1'000);
    beat("a", {unit});
  }
  EXPECT_EQ(queue_.find("s")->leased, 1);
  for (int i = 0; i < 3; ++i) {
    pass(1'000);
    beat("a", {});
  }
  EXPECT_EQ(queue_.find("s")->leased, 0);
}

// Heartbeats that were held up on their way come all at once, and so do those that waited for a
// coordinator that stood still; all of them were said before the unit was there.
TEST_F(QueueTest, HeartbeatsThatAreLateDoNotTakeAUnitAway) {
  submit("s", one_unit_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>().at(0);
  for (int i = 0; i < 4; ++i) {
    now_ += 10;
    beat("a", {});
  }
  EXPECT_EQ(queue_.find("s")->leased, 1);
  now_ += 20'000;
  beat("a", {unit});
  now_ += 20'000;
  beat("a", {});
  EXPECT_EQ(queue_.find("s")->leased, 1);
}

TEST_F(QueueTest, UnitThatIsOnlyLateStaysWithItsWorkerUnlessSomebodyHasGotIt) {
  submit("s", one_unit_spec());
  hello("a", 1);
  const auto late = taken<action::SendUnit>().at(0);
  const auto lose = [&] {
    for (int i = 0; i < 3; ++i) {
      pass(1'000);
      beat("a", {});
    }
    EXPECT_EQ(queue_.find("s")->leased, 0);
  };
  handle(event::WorkerReady{WorkerEpoch("a"), 0});
  lose();
  beat("a", {late});
  EXPECT_EQ(queue_.find("s")->leased, 1);
  EXPECT_TRUE(taken<action::SendRevoke>().empty());
  lose();
  hello("b", 1);
  EXPECT_EQ(taken<action::SendUnit>().at(0).worker.value, "b");
  beat("a", {late});
  const auto revoked = taken<action::SendRevoke>();
  ASSERT_EQ(revoked.size(), 1u);
  EXPECT_EQ(revoked[0].worker.value, "a");
}

TEST_F(QueueTest, SilentWorkerLosesItsUnitsAtOnce) {
  submit("s", small_spec());
  hello("a", 2);
  handle(event::Tick{});
  pass(5'000);
  EXPECT_EQ(queue_.workers().size(), 1u);
  pass(1);
  EXPECT_TRUE(queue_.workers().empty());
  EXPECT_EQ(queue_.find("s")->open(), 4);
}

// kill -STOP of the coordinator, then -CONT: the workers were there all the time.
TEST_F(QueueTest, FrozenCoordinatorDoesNotTakeItsWorkersForDead) {
  submit("s", small_spec());
  hello("a", 2);
  handle(event::Tick{});
  now_ += 60'000;
  handle(event::Tick{});
  EXPECT_EQ(queue_.workers().size(), 1u);
  EXPECT_EQ(queue_.find("s")->leased, 2);
  pass(6'000);  // but now it is really silent
  EXPECT_TRUE(queue_.workers().empty());
}

TEST_F(QueueTest, GoodbyeReturnsUnits) {
  submit("s", small_spec());
  hello("a", 2);
  handle(event::WorkerBye{WorkerEpoch("a")});
  EXPECT_EQ(queue_.find("s")->open(), 4);
  EXPECT_TRUE(queue_.held().empty());
}

TEST_F(QueueTest, SecondResultIsAcknowledgedAndNotCounted) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  deliver(unit);
  deliver(unit);  // while the first is on its way to the store
  store_all();
  deliver(unit);  // and after
  EXPECT_EQ(taken<action::SendAck>().size(), 3u);
  EXPECT_EQ(done(), 1);
}

TEST_F(QueueTest, DifferentSecondResultIsADefectAndTheFirstStays) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  deliver(unit, 0.5);
  deliver(unit, 0.7);
  store_all();
  deliver(unit, 0.9);
  EXPECT_EQ(queue_.find("s")->conflicts, 2);
  EXPECT_EQ(queue_.find("s")->table.result(unit.unit).sums[0], 0.5);
  const auto logs = taken<action::Log>();
  EXPECT_EQ(std::count_if(logs.begin(), logs.end(), [](const auto& l) { return l.defect; }), 2);
}

// The store had a value that this coordinator did not know of: that one counts.
TEST_F(QueueTest, ConflictInTheStoreTakesTheStoredValue) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  deliver(unit, 0.5);
  const UnitResult other = result_of(small_spec(), unit.unit, 0.25);
  handle(StoreDone{ops_.front().token, StoreDone::Outcome::kConflict, pack(other)});
  EXPECT_EQ(queue_.find("s")->table.result(unit.unit).sums[0], 0.25);
  EXPECT_EQ(queue_.find("s")->conflicts, 1);
  EXPECT_EQ(taken<action::SendAck>().size(), 1u);
}

TEST_F(QueueTest, RetryableFailureGoesToAnotherWorkerAfterAPause) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  hello("b");
  fail(unit, ErrorCode::kInternal, true);
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["retrying"], 1);
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["failed"], 0);
  now_ += 1'001;
  ready("a", 4);  // takes every other unit, not the one that it failed on
  for (const auto& other : taken<action::SendUnit>()) EXPECT_NE(other.unit, unit.unit);
  ready("b", 4);
  const auto again = taken<action::SendUnit>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].unit, unit.unit);
}

// Rests of 1, 2, 4, … seconds, at most a minute, the same every time.
TEST_F(QueueTest, BackOffDoublesUpToItsLimit) {
  QueueOptions options;
  options.max_attempts = 100;
  queue_ = Queue(options);
  submit("s", one_unit_spec());
  hello("a", 1);
  for (const TimeMs rest : {1'000, 2'000, 4'000, 8'000, 16'000, 32'000, 60'000, 60'000}) {
    const auto units = taken<action::SendUnit>();
    ASSERT_EQ(units.size(), 1u) << rest;
    fail(units[0], ErrorCode::kInternal, true);
    now_ += rest - 1;
    ready("a", 1);
    EXPECT_TRUE(taken<action::SendUnit>().empty()) << rest;
    now_ += 1;
    ready("a", 1);
  }
}

// A poison unit: three failures, and the rest of the search goes on without it.
TEST_F(QueueTest, ThirdFailureSetsAUnitAsideAndTheRestGoesOn) {
  submit("s", small_spec());
  hello("a");
  UnitId poison;
  for (int attempt = 0; attempt < 3; ++attempt) {
    now_ += 3'000;
    ready("a", 1);
    const auto units = taken<action::SendUnit>();
    ASSERT_EQ(units.size(), 1u);
    poison = units[0].unit;
    fail(units[0], ErrorCode::kInternal, true);
  }
  EXPECT_EQ(state(), SearchState::kRunning);
  Json status = status_json(queue_, *queue_.find("s"), now_);
  EXPECT_EQ(status["units"]["failed"], 1);
  ASSERT_EQ(status["failed_units"].size(), 1u);
  EXPECT_EQ(status["failed_units"][0]["unit"], unit_name(poison));
  EXPECT_EQ(status["failed_units"][0]["attempts"], 3);
  EXPECT_EQ(status["failed_units"][0]["worker"], "a");
  EXPECT_EQ(status["failed_units"][0]["error"]["message"], "because");
  finish_all("a");
  EXPECT_EQ(done(), 3);
  EXPECT_TRUE(taken<action::WriteCheckpoint>().empty());
  ASSERT_EQ(state(), SearchState::kFailed);  // nothing else is left
  const Error error = *queue_.find("s")->status.error;
  EXPECT_EQ(error.code, ErrorCode::kInternal);
  EXPECT_NE(error.message.find("1 of 4 units failed"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("because"), std::string::npos) << error.message;

  submit("s", small_spec());  // new attempts, for that unit alone
  EXPECT_FALSE(queue_.find("s")->status.error);
  ready("a", 4);
  const auto again = taken<action::SendUnit>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].unit, poison);
  deliver(again[0]);
  store_all();
  EXPECT_EQ(taken<action::WriteCheckpoint>().size(), 1u);
}

TEST_F(QueueTest, ResumeGivesNewAttemptsToWhatIsSetAside) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  fail(unit, ErrorCode::kInvalidArgument, false);  // set aside at once
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["failed"], 1);
  change("s", event::Change::Kind::kResume);
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["failed"], 0);
  EXPECT_EQ(queue_.find("s")->open(), 4);
}

TEST_F(QueueTest, NonRetryableFailureSetsTheUnitAsideAtOnceAndRunningUnitsGoOn) {
  submit("s", small_spec());
  hello("a", 2);
  const auto units = taken<action::SendUnit>();
  fail(units[0], ErrorCode::kInvalidArgument, false);
  EXPECT_EQ(state(), SearchState::kRunning);
  EXPECT_TRUE(taken<action::SendRevoke>().empty());
  deliver(units[1]);
  store_all();
  EXPECT_EQ(done(), 1);
}

// It was given up, then its result came after all.
TEST_F(QueueTest, LateResultOfAUnitThatIsSetAsideCounts) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  fail(unit, ErrorCode::kInvalidArgument, false);
  deliver(unit);
  store_all();
  EXPECT_EQ(done(), 1);
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["failed"], 0);
}

// Eight units failed for good and none was ever done: no use burning through the other 72.
TEST_F(QueueTest, SearchWithoutASingleSuccessIsGivenUpEarly) {
  SearchSpec spec = small_spec();
  spec.sequences = 80;
  submit("s", spec);
  hello("a");
  for (int failures = 0; failures < 8; ++failures) {
    EXPECT_NE(state(), SearchState::kFailed) << failures;
    ready("a", 1);
    fail(taken<action::SendUnit>().at(0), ErrorCode::kNotFound, false);
  }
  EXPECT_EQ(state(), SearchState::kFailed);
  EXPECT_EQ(queue_.find("s")->status.error->code, ErrorCode::kNotFound);
}

TEST_F(QueueTest, UnitsThatAreSetAsideSurviveARestart) {
  SearchRecord record = record_of("s");
  const auto units = plan_units(record.spec);
  record.failures[units[2]] = {3, 0, WorkerEpoch("w"),
                               Error{ErrorCode::kInternal, "because", "", ""}};
  handle(event::SearchLoaded{record});
  const Json status = status_json(queue_, *queue_.find("s"), now_);
  EXPECT_EQ(status["failed_units"][0]["unit"], unit_name(units[2]));
  hello("a", 4);
  for (const auto& sent : taken<action::SendUnit>()) EXPECT_NE(sent.unit, units[2]);
  EXPECT_EQ(queue_.find("s")->leased, 3);
}

// 8 GiB were not enough; of 8, 8 and 16 GiB only the last is tried next.
TEST_F(QueueTest, UnitThatLackedMemoryGoesToAWorkerWithMore) {
  submit("s", one_unit_spec());
  hello_with("a", {{"memory_bytes", int64_t{8} << 30}}, 1);
  const auto unit = taken<action::SendUnit>().at(0);
  hello_with("b", {{"memory_bytes", int64_t{8} << 30}}, 0);
  hello_with("c", {{"memory_bytes", int64_t{16} << 30}}, 0);
  fail(unit, ErrorCode::kResourceExhausted, true);
  now_ += 1'001;
  ready("b", 1);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  ready("c", 1);
  const auto again = taken<action::SendUnit>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].worker.value, "c");
  fail(again[0], ErrorCode::kResourceExhausted, true);  // nobody has more than 16 GiB
  ready("b", 1);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  EXPECT_EQ(state(), SearchState::kFailed);
  const Error& error = *queue_.find("s")->status.error;
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  EXPECT_NE(error.message.find("because"), std::string::npos) << error.message;  // the worker's own
}

// The one worker with more memory is busy: for as long as it is there, the unit waits for it.
TEST_F(QueueTest, UnitThatLackedMemoryWaitsForTheWorkerWithMore) {
  submit("s", small_spec());
  hello_with("small", {{"memory_bytes", int64_t{8} << 30}}, 1);
  const auto unit = taken<action::SendUnit>().at(0);
  hello_with("large", {{"memory_bytes", int64_t{16} << 30}}, 1);
  const auto other = taken<action::SendUnit>().at(0);
  fail(unit, ErrorCode::kResourceExhausted, true);
  for (int i = 0; i < 60; ++i) {
    pass(1'000);
    beat("small", {});
    beat("large", {other});
  }
  handle(event::WorkerBye{WorkerEpoch("large")});
  store_all();
  const auto offered = [&] {
    ready("small", 4);
    const auto units = taken<action::SendUnit>();
    return std::any_of(units.begin(), units.end(),
                       [&](const auto& sent) { return sent.unit == unit.unit; });
  };
  EXPECT_TRUE(offered());  // it has waited for long enough, and nobody else is there
}

TEST_F(QueueTest, NoSecondLeaseForAWorkerWithTooLittleMemory) {
  submit("s", small_spec());
  hello_with("small", {{"memory_bytes", int64_t{8} << 30}}, 1);
  const auto unit = taken<action::SendUnit>().at(0);
  hello_with("large", {{"memory_bytes", int64_t{16} << 30}}, 0);
  fail(unit, ErrorCode::kResourceExhausted, true);
  finish_all("small");  // the three others
  EXPECT_EQ(done(), 3);
  pass(1'001);
  ready("large", 1);
  EXPECT_EQ(taken<action::SendUnit>().at(0).unit, unit.unit);
  for (int i = 0; i < 20; ++i) {  // far longer than those took
    pass(1'000);
    beat("small", {});
    beat("large", {{WorkerEpoch("large"), "s", unit.unit, Fence(5), 0}});
  }
  EXPECT_TRUE(taken<action::SendUnit>().empty());
}

TEST_F(QueueTest, WorkerWithAnotherModelIsLeftOutAndOnlyAllOfThemFailTheSearch) {
  submit("s", small_spec());
  hello("a", 1);
  const auto first = taken<action::SendUnit>()[0];
  hello("b");
  fail(first, ErrorCode::kMismatch, false);
  EXPECT_EQ(state(), SearchState::kRunning);
  ready("a", 1);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  ready("b", 1);
  const auto second = taken<action::SendUnit>();
  ASSERT_EQ(second.size(), 1u);
  fail(second[0], ErrorCode::kMismatch, false);
  EXPECT_EQ(state(), SearchState::kFailed);
  EXPECT_EQ(queue_.find("s")->status.error->code, ErrorCode::kMismatch);
}

// "old" has died and is not given up yet when the one worker that is left says that it sees another
// model.
TEST_F(QueueTest, WorkerThatWasDeadWhenTheOthersWereLeftOutDoesNotKeepTheSearchAlive) {
  submit("s", small_spec());
  hello("old");
  pass(1'000);
  hello("new", 1);
  fail(taken<action::SendUnit>().at(0), ErrorCode::kMismatch, false);
  EXPECT_EQ(state(), SearchState::kRunning);
  for (int i = 0; i < 5; ++i) {
    pass(1'000);
    beat("new", {});
  }
  EXPECT_EQ(state(), SearchState::kFailed);
  EXPECT_EQ(queue_.find("s")->status.error->code, ErrorCode::kMismatch);
}

// One that was well then, and is cut off later, may come back: the search waits and says why.
TEST_F(QueueTest, WorkerThatDiesAfterTheOthersWereLeftOutIsWaitedFor) {
  submit("s", small_spec());
  hello("good");
  hello("bad", 1);
  fail(taken<action::SendUnit>().at(0), ErrorCode::kMismatch, false);
  pass(1'000);
  beat("good", {});
  for (int i = 0; i < 6; ++i) {
    pass(1'000);
    beat("bad", {});
  }
  EXPECT_EQ(queue_.workers().count(WorkerEpoch("good")), 0u);
  EXPECT_EQ(state(), SearchState::kRunning);
  EXPECT_NE(why_pending(queue_, *queue_.find("s"), now_).find("sees another model"),
            std::string::npos);
}

TEST_F(QueueTest, UnitThatTakesEveryWorkerWithItIsSetAside) {
  submit("s", small_spec());
  std::set<std::string> lost;
  for (int i = 0; i < 10; ++i) {
    hello("w" + std::to_string(i), 1);
    for (const auto& unit : taken<action::SendUnit>()) lost.insert(unit_name(unit.unit));
    pass(6'000);
  }
  EXPECT_EQ(lost.size(), 1u);  // it goes first: what is wrong with it shows soon
  const Json status = status_json(queue_, *queue_.find("s"), now_);
  EXPECT_EQ(status["units"]["failed"], 1);
  EXPECT_EQ(status["failed_units"][0]["losses"], 10);
  EXPECT_EQ(state(), SearchState::kRunning);
}

TEST_F(QueueTest, InvalidResultIsRefusedDroppedAndTriedAgain) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  deliver(unit, std::nan(""));
  EXPECT_EQ(taken<action::SendReject>().size(), 1u);
  EXPECT_EQ(taken<action::SendRevoke>().size(), 1u);
  EXPECT_TRUE(taken<action::SendAck>().empty());
  EXPECT_EQ(done(), 0);
  EXPECT_EQ(queue_.find("s")->open(), 4);
}

TEST_F(QueueTest, ResultOfADeletedSearchIsDropped) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  handle(event::Delete{++request_, "s"});
  EXPECT_EQ(taken<action::SendRevoke>().size(), 1u);
  EXPECT_TRUE(taken<action::ReplyDeleted>().empty());
  store_all();
  EXPECT_EQ(taken<action::ReplyDeleted>().size(), 1u);
  handle(event::WorkerResult{unit.worker, "s", unit.fence, 1, "c",
                             result_of(small_spec(), unit.unit)});
  EXPECT_EQ(taken<action::SendRevoke>().size(), 1u);
}

// A result of the old search that is still on its way must not count for a new one of that name.
// Simulator, seed 647: "not found" before the delete was durable, and the search came back.
TEST_F(QueueTest, DeleteThatIsOnItsWayIsNotAnsweredWithNotFound) {
  submit("s", small_spec());
  handle(event::Delete{++request_, "s"});
  handle(event::Delete{++request_, "s"});
  const auto refused = taken<action::ReplyError>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].error.code, ErrorCode::kUnavailable);
  store_all();
  EXPECT_EQ(taken<action::ReplyDeleted>().size(), 1u);
  handle(event::Delete{++request_, "s"});
  EXPECT_EQ(taken<action::ReplyError>()[0].error.code, ErrorCode::kNotFound);
}

TEST_F(QueueTest, SameNameWaitsUntilTheOldOneIsGone) {
  submit("s", small_spec());
  hello("a", 1);
  deliver(taken<action::SendUnit>()[0]);
  handle(event::Delete{++request_, "s"});
  event::Submit again;
  again.request = ++request_;
  again.record.id = "s";
  again.record.spec = small_spec();
  again.record.fingerprint = fingerprint(small_spec());
  handle(again);
  const auto refused = taken<action::ReplyError>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].error.code, ErrorCode::kUnavailable);
  store_all();
  submit("s", small_spec());
  EXPECT_EQ(done(), 0);
}

TEST_F(QueueTest, PauseLetsRunningUnitsFinishAndGrantsNone) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  change("s", event::Change::Kind::kPause);
  EXPECT_TRUE(taken<action::SendRevoke>().empty());
  deliver(unit);
  store_all();
  EXPECT_EQ(done(), 1);
  ready("a", 4);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  change("s", event::Change::Kind::kResume);
  EXPECT_EQ(taken<action::SendUnit>().size(), 3u);
}

TEST_F(QueueTest, CancelRevokesKeepsResultsAndSubmitGoesOn) {
  submit("s", small_spec());
  hello("a", 2);
  const auto units = taken<action::SendUnit>();
  deliver(units[0]);
  store_all();
  change("s", event::Change::Kind::kCancel);
  EXPECT_EQ(state(), SearchState::kCancelled);
  EXPECT_EQ(taken<action::SendRevoke>().size(), 1u);
  deliver(units[1]);  // was finished before the revoke came: not wasted
  store_all();
  EXPECT_EQ(taken<action::SendAck>().size(), 2u);
  EXPECT_EQ(state(), SearchState::kCancelled);
  submit("s", small_spec());
  finish_all("a");
  EXPECT_EQ(done(), 4);
}

TEST_F(QueueTest, HigherPriorityIsServedFirst) {
  submit("low", small_spec());
  SearchSpec other = small_spec();
  other.tokens_sha256 = "u";
  submit("high", other, 5);
  hello("a", 1);
  EXPECT_EQ(taken<action::SendUnit>()[0].search, "high");
  change("low", event::Change::Kind::kReprioritize, 9);
  hello("b", 1);
  EXPECT_EQ(taken<action::SendUnit>()[0].search, "low");
}

TEST_F(QueueTest, AnotherFingerprintUnderTheSameIdIsRefusedByPart) {
  submit("s", small_spec());
  SearchSpec other = small_spec();
  other.model.weights_sha256 = "x";
  taken<action::ReplyStatus>();
  submit("s", other);
  const auto refused = taken<action::ReplyError>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].error.code, ErrorCode::kMismatch);
  EXPECT_NE(refused[0].error.message.find("model weights"), std::string::npos);
  SearchSpec budget = small_spec();
  budget.effective_bits = 7;
  submit("s", budget);
  const auto same = taken<action::ReplyStatus>();
  ASSERT_EQ(same.size(), 1u);
  EXPECT_FALSE(same[0].created);
  EXPECT_EQ(queue_.find("s")->spec.effective_bits, 7);
}

TEST_F(QueueTest, NothingIsGrantedWhileTheStoreIsLost) {
  submit("s", small_spec());
  hello("a", 1);
  const auto unit = taken<action::SendUnit>()[0];
  handle(StoreLost{"gone"});
  ready("a", 4);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  deliver(unit);
  EXPECT_TRUE(taken<action::SendAck>().empty());
  change("s", event::Change::Kind::kPause);
  EXPECT_EQ(taken<action::ReplyError>()[0].error.code, ErrorCode::kUnavailable);
  handle(StoreBack{});
  store_all();
  EXPECT_EQ(taken<action::SendAck>().size(), 1u);
  EXPECT_EQ(taken<action::SendUnit>().size(), 3u);
}

TEST_F(QueueTest, RestartedCoordinatorLeavesUnitsToWorkersThatStillRunThem) {
  SearchRecord record;
  record.id = "s";
  record.spec = small_spec();
  record.fingerprint = fingerprint(record.spec);
  record.status.state = SearchState::kRunning;
  record.has_tokens = true;
  record.fence = Fence(7);
  const auto units = plan_units(record.spec);
  record.results = {result_of(record.spec, units[0])};
  record.leases[units[1]] = {WorkerEpoch("old"), Fence(7)};
  handle(event::SearchLoaded{record});
  EXPECT_EQ(done(), 1);
  EXPECT_EQ(queue_.find("s")->open(), 2);
  hello("new", 4);
  auto sent = taken<action::SendUnit>();
  ASSERT_EQ(sent.size(), 2u);
  for (const auto& unit : sent) {
    EXPECT_NE(unit.unit, units[0]);
    EXPECT_NE(unit.unit, units[1]);
    EXPECT_GT(unit.fence.value, 7);
  }
  now_ += 4'000;
  hello("old");
  beat("old", {{WorkerEpoch("old"), "s", units[1], Fence(7), 0}});
  beat("new", sent);
  pass(4'000);
  EXPECT_EQ(queue_.find("s")->leased, 3);
  pass(30'000);  // and a worker that never comes back loses them
  EXPECT_EQ(queue_.find("s")->leased, 0);
}

// Its lease was written down, then the coordinator died before it sent the unit.
TEST_F(QueueTest, UnitThatWasNeverSentIsFreeAsSoonAsItsWorkerSaysWhatItHolds) {
  SearchRecord record;
  record.id = "s";
  record.spec = small_spec();
  record.fingerprint = fingerprint(record.spec);
  record.has_tokens = true;
  record.fence = Fence(2);
  const auto units = plan_units(record.spec);
  record.leases[units[0]] = {WorkerEpoch("w"), Fence(1)};
  record.leases[units[1]] = {WorkerEpoch("w"), Fence(2)};
  handle(event::SearchLoaded{record});
  hello("w");
  beat("w", {{WorkerEpoch("w"), "s", units[0], Fence(1), 0}});
  EXPECT_EQ(queue_.find("s")->leased, 1);
}

TEST_F(QueueTest, EtaComesFromMeasuredUnits) {
  submit("s", small_spec());
  hello("a", 1);
  EXPECT_TRUE(status_json(queue_, *queue_.find("s"), now_)["eta_seconds"].is_null());
  deliver(taken<action::SendUnit>()[0]);  // row 1 of 2 layers: weight 1·2, one second
  store_all();
  ready("a", 1);
  const Json eta = status_json(queue_, *queue_.find("s"), now_)["eta_seconds"];
  // Left: score/0 row 0 (2·2), score/1 rows 1 and 0 (2 + 4): 10 of weight at 0.5 s, ± 50 %.
  EXPECT_DOUBLE_EQ(eta[0], 2.5);
  EXPECT_DOUBLE_EQ(eta[1], 7.5);
}

TEST_F(QueueTest, ImportIsDoneWhenCompleteAndWaitsForTokensOtherwise) {
  for (const bool complete : {true, false}) {
    event::Submit event;
    event.request = ++request_;
    event.record.id = complete ? "full" : "half";
    event.record.spec = small_spec();
    event.record.fingerprint = fingerprint(small_spec());
    for (const UnitId& unit : plan_units(small_spec())) {
      if (complete || unit.batch.value == 0) {
        event.record.results.push_back(result_of(small_spec(), unit));
      }
    }
    handle(event);
    store_all();
  }
  handle(event::CheckpointWritten{"full"});
  store_all();
  EXPECT_EQ(state("full"), SearchState::kDone);
  EXPECT_EQ(state("half"), SearchState::kPaused);
  hello("a", 4);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  change("half", event::Change::Kind::kResume);
  EXPECT_EQ(taken<action::ReplyError>().size(), 1u);
  submit("half", small_spec());
  EXPECT_EQ(taken<action::SendUnit>().size(), 2u);
}

// ---- many searches ------------------------------------------------------------------------------

// Searches of one model: a, b, … with tokens of their own, `batches` × 2 sites of units each.
SearchSpec numbered_spec(int number, int batches, const std::string& weights = "w") {
  SearchSpec spec = small_spec();
  spec.tokens_sha256 = "t" + std::to_string(number);
  spec.sequences = 2 * batches;
  spec.model.weights_sha256 = weights;
  return spec;
}

class Shares : public QueueTest {
 protected:
  // One worker computes `count` units, each in `seconds_of(search)`; → units a search got.
  template <typename Seconds>
  std::map<std::string, int> work(int count, Seconds seconds_of) {
    std::map<std::string, int> units;
    for (int i = 0; i < count; ++i) {
      ready("w", 1);
      const auto sent = taken<action::SendUnit>();
      if (sent.size() != 1) break;
      ++units[sent[0].search];
      const double seconds = seconds_of(sent[0].search);
      now_ += static_cast<TimeMs>(1'000 * seconds);
      handle(event::Tick{});
      deliver(sent[0], 0.5, seconds);
      store_all();
    }
    return units;
  }
};

// a's units take three times as long as b's: equal time means three units of b for one of a.
TEST_F(Shares, SearchesOfOneLevelShareTimeAndNotUnits) {
  submit("a", numbered_spec(1, 500));
  submit("b", numbered_spec(2, 500));
  hello("w");
  const auto units = work(400, [](const std::string& id) { return id == "a" ? 3.0 : 1.0; });
  EXPECT_NEAR(units.at("a"), 100, 6);
  EXPECT_NEAR(units.at("b"), 300, 6);
}

TEST_F(Shares, AShareOfTwoGetsTwiceTheTime) {
  submit("a", numbered_spec(1, 500), 0, 2);
  submit("b", numbered_spec(2, 500));
  hello("w");
  const auto units = work(300, [](const std::string&) { return 1.0; });
  EXPECT_NEAR(units.at("a"), 200, 4);
  EXPECT_NEAR(units.at("b"), 100, 4);
}

// b comes 200 s later: it is not owed them, so of the next 100 s each gets half.
TEST_F(Shares, ANewSearchDoesNotMonopolize) {
  submit("a", numbered_spec(1, 500));
  hello("w");
  work(200, [](const std::string&) { return 1.0; });
  submit("b", numbered_spec(2, 500));
  const auto units = work(100, [](const std::string&) { return 1.0; });
  EXPECT_NEAR(units.at("a"), 50, 2);
  EXPECT_NEAR(units.at("b"), 50, 2);
}

// The same for one that was paused meanwhile.
TEST_F(Shares, AResumedSearchDoesNotMonopolize) {
  submit("a", numbered_spec(1, 500));
  submit("b", numbered_spec(2, 500));
  hello("w");
  work(10, [](const std::string&) { return 1.0; });
  change("b", event::Change::Kind::kPause);
  EXPECT_EQ(work(200, [](const std::string&) { return 1.0; }).count("b"), 0u);
  change("b", event::Change::Kind::kResume);
  const auto units = work(100, [](const std::string&) { return 1.0; });
  EXPECT_NEAR(units.at("b"), 50, 2);
}

TEST_F(Shares, AHigherLevelTakesEverythingUntilItIsDone) {
  submit("low", numbered_spec(1, 500));
  submit("high", numbered_spec(2, 10), 1);
  hello("w");
  const auto units = work(20, [](const std::string&) { return 1.0; });
  EXPECT_EQ(units.at("high"), 20);  // 10 batches × 2 units
  EXPECT_EQ(work(1, [](const std::string&) { return 1.0; }).count("low"), 1u);
}

TEST_F(Shares, WhyPendingNamesWhoGoesFirst) {
  submit("low", numbered_spec(1, 5));
  submit("high", numbered_spec(2, 5), 1);
  hello("w", 1);
  EXPECT_EQ(why_pending(queue_, *queue_.find("low"), now_),
            "1 searches of higher priority are served before it");
}

// ---- models -------------------------------------------------------------------------------------

// Two models, two workers: each keeps to one although the searches are of one level.
TEST_F(Shares, WorkersKeepToTheModelTheyHold) {
  submit("a", numbered_spec(1, 100, "model a"));
  submit("b", numbered_spec(2, 100, "model b"));
  hello_with("x", {{"models", {"model b"}}}, 0);
  hello_with("y", {{"models", {"model a"}}}, 0);
  for (int i = 0; i < 50; ++i) {
    ready("x", 1);
    ready("y", 1);
    for (const auto& unit : taken<action::SendUnit>()) {
      EXPECT_EQ(unit.search, unit.worker.value == "x" ? "b" : "a");
      deliver(unit);
    }
    now_ += 1'000;
    store_all();
  }
  EXPECT_EQ(done("a"), 50);
  EXPECT_EQ(done("b"), 50);
  EXPECT_EQ(queue_.model_switches(), 0);
}

// One worker, two models: it changes when the other search is 60 worker-seconds behind, not before,
// and both get half of the time. 600 units of 1 s: no more than 600 / 60 switches, and no fewer
// than keep the two within 61 s.
TEST_F(Shares, OneWorkerSwitchesModelsNowAndThen) {
  submit("a", numbered_spec(1, 500, "model a"));
  submit("b", numbered_spec(2, 500, "model b"));
  hello("w");
  const auto units = work(600, [](const std::string&) { return 1.0; });
  EXPECT_NEAR(units.at("a"), 300, 61);
  EXPECT_NEAR(units.at("b"), 300, 61);
  EXPECT_GE(queue_.model_switches(), 4);
  EXPECT_LE(queue_.model_switches(), 10);
  EXPECT_EQ(workers_json(queue_, now_)[0]["model_switches"], queue_.model_switches());
}

TEST_F(Shares, AnIdleWorkerSwitchesAtOnceAndAHigherLevelIsNotKeptWaiting) {
  submit("a", numbered_spec(1, 2, "model a"));
  submit("b", numbered_spec(2, 100, "model b"));
  hello("w");
  EXPECT_EQ(work(4, [](const std::string&) { return 1.0; }).at("a"), 4);
  EXPECT_EQ(work(4, [](const std::string&) { return 1.0; }).at("b"), 4);
  submit("c", numbered_spec(3, 1, "model c"), 7);
  EXPECT_EQ(work(2, [](const std::string&) { return 1.0; }).at("c"), 2);
  EXPECT_EQ(queue_.model_switches(), 2);
}

// Both are free; the one that holds the model gets the unit although the other comes first.
TEST_F(Shares, AWorkerThatHoldsTheModelIsPreferred) {
  hello_with("a", {{"models", {"another"}}}, 1);
  hello_with("b", {{"models", {"w"}}}, 1);
  submit("s", one_unit_spec());
  const auto units = taken<action::SendUnit>();
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(units[0].worker.value, "b");
}

// ---- numerics -----------------------------------------------------------------------------------

TEST_F(QueueTest, WorkerOfAnotherNumericsVersionGetsNothingAndDeliversNothing) {
  submit("s", small_spec());
  hello_with("old", {{"numerics_version", kNumericsVersion + 1}}, 4);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  const std::string why = why_pending(queue_, *queue_.find("s"), now_);
  EXPECT_NE(why.find("old"), std::string::npos) << why;
  EXPECT_NE(why.find("numerics version 2"), std::string::npos) << why;
  const UnitId unit = plan_units(small_spec())[0];
  handle(event::WorkerResult{WorkerEpoch("old"), "s", Fence(1), 1, "c",
                             result_of(small_spec(), unit)});
  const auto refused = taken<action::SendReject>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].error.code, ErrorCode::kMismatch);
  // Nor from one that nobody knows, if it says so with the result.
  event::WorkerResult result{WorkerEpoch("unknown"),       "s", Fence(1), 1, "c",
                             result_of(small_spec(), unit)};
  result.numerics_version = kNumericsVersion + 1;
  handle(result);
  EXPECT_EQ(taken<action::SendReject>().size(), 1u);
  store_all();
  EXPECT_EQ(done(), 0);
  hello_with("new", {{"numerics_version", kNumericsVersion}}, 4);
  EXPECT_EQ(taken<action::SendUnit>().size(), 4u);
}

// ---- stragglers ---------------------------------------------------------------------------------

class Stragglers : public QueueTest {
 protected:
  // Three of the four units done in a second each, the last one with "slow"; "fast" is idle.
  action::SendUnit straggler() {
    submit("s", small_spec());
    hello("slow", 1);
    const auto slow = taken<action::SendUnit>().at(0);
    hello("fast");
    for (int i = 0; i < 3; ++i) {
      ready("fast", 1);
      deliver(taken<action::SendUnit>().at(0));
      store_all();
    }
    ready("fast", 1);
    EXPECT_TRUE(taken<action::SendUnit>().empty());
    return slow;
  }
  void pass_alive(TimeMs ms, const action::SendUnit& slow) {
    for (TimeMs end = now_ + ms; now_ < end;) {
      pass(std::min<TimeMs>(1'000, end - now_));
      beat("slow", {slow});
      beat("fast", {});
    }
  }
};

// Weights: row 1 costs 2 passes, row 0 costs 4. Done by "fast": 4 + 2 + 4 in 3 s, so the unit with
// "slow" (row 1) is expected to take 0.6 s; twice that is below the floor of 2 s.
TEST_F(Stragglers, UnitOfASlowWorkerIsGivenToAnIdleOneAndTheFirstResultWins) {
  const auto slow = straggler();
  pass_alive(2'000, slow);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  pass_alive(1'000, slow);
  const auto second = taken<action::SendUnit>();
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].unit, slow.unit);
  EXPECT_EQ(second[0].worker.value, "fast");
  EXPECT_GT(second[0].fence, slow.fence);
  EXPECT_EQ(queue_.find("s")->leased, 1);  // one unit
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["speculated"], 1);
  EXPECT_TRUE(taken<action::SendRevoke>().empty());
  deliver(second[0]);
  const auto revoked = taken<action::SendRevoke>();
  ASSERT_EQ(revoked.size(), 1u);
  EXPECT_EQ(revoked[0].worker.value, "slow");
  EXPECT_EQ(revoked[0].fence, slow.fence);
  store_all();
  EXPECT_EQ(done(), 4);
  deliver(slow);  // it did not hear of that: acknowledged, not counted
  EXPECT_EQ(taken<action::SendAck>().back().worker.value, "slow");
  EXPECT_EQ(done(), 4);
  EXPECT_TRUE(queue_.held().empty());
}

TEST_F(Stragglers, EitherOfTheTwoMayFailOrVanish) {
  const auto slow = straggler();
  pass_alive(3'000, slow);
  const auto second = taken<action::SendUnit>().at(0);
  fail(second, ErrorCode::kInternal, true);
  EXPECT_EQ(queue_.find("s")->leased, 1);  // "slow" is still at it
  EXPECT_EQ(queue_.find("s")->open(), 0);
  handle(event::WorkerBye{WorkerEpoch("slow")});
  now_ += 1'000;
  ready("fast", 1);  // nobody else is there: again
  EXPECT_EQ(taken<action::SendUnit>().size(), 1u);
}

// The unit has used up its attempts while its other lease still runs; deleting the search then ends
// both, and fails nothing.
TEST_F(Stragglers, DeletedWhileOneOfTheTwoHasFailedForGood) {
  const auto slow = straggler();
  pass_alive(3'000, slow);
  fail(taken<action::SendUnit>().at(0), ErrorCode::kInvalidArgument, false);
  EXPECT_EQ(queue_.find("s")->leased, 1);
  handle(event::Delete{++request_, "s"});
  store_all();
  EXPECT_EQ(taken<action::ReplyDeleted>().size(), 1u);
  EXPECT_EQ(queue_.find("s"), nullptr);
  EXPECT_TRUE(queue_.held().empty());
  pass(60'000);
}

TEST_F(Stragglers, NothingIsRunTwiceWhileUnitsAreOpenOrTheSearchIsPaused) {
  const auto slow = straggler();
  change("s", event::Change::Kind::kPause);
  pass_alive(20'000, slow);
  EXPECT_TRUE(taken<action::SendUnit>().empty());
  submit("other", numbered_spec(1, 1));
  EXPECT_EQ(taken<action::SendUnit>().at(0).search, "other");
  change("s", event::Change::Kind::kResume);
  pass_alive(20'000, slow);
  EXPECT_TRUE(taken<action::SendUnit>().empty());  // "fast" has no credit
}

// What is durable of two leases is the newer one; after a restart the older worker goes on when the
// newer does not.
TEST_F(Stragglers, ARestartKeepsTheNewerLeaseOnly) {
  SearchRecord record = record_of("s");
  record.fence = Fence(5);
  const UnitId unit = plan_units(record.spec)[0];
  record.leases[unit] = {WorkerEpoch("fast"), Fence(5)};
  handle(event::SearchLoaded{record});
  hello("slow");
  const action::SendUnit old{WorkerEpoch("slow"), "s", unit, Fence(4), 0};
  beat("slow", {old});
  EXPECT_EQ(taken<action::SendRevoke>().size(), 1u);
  pass(6'000);  // "fast" never came back
  taken<action::SendRevoke>();
  hello("slow");
  beat("slow", {old});
  EXPECT_TRUE(taken<action::SendRevoke>().empty());
  EXPECT_EQ(queue_.held().count(WorkerEpoch("slow")), 1u);
}

// ---- draining -----------------------------------------------------------------------------------

TEST_F(QueueTest, UnitGivenBackIsOpenAtOnceAndHasNotFailed) {
  submit("s", small_spec());
  hello("a", 2);
  const auto units = taken<action::SendUnit>();
  handle(event::WorkerReady{WorkerEpoch("a"), 0});
  handle(event::WorkerGiveBack{WorkerEpoch("a"), "s", units[1].unit, units[1].fence});
  EXPECT_EQ(queue_.find("s")->open(), 3);
  EXPECT_EQ(queue_.find("s")->leased, 1);
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["retrying"], 0);
  hello("b", 4);
  EXPECT_EQ(taken<action::SendUnit>().size(), 3u);
}

// ---- the index of open units --------------------------------------------------------------------

TEST(OpenUnits, AgreesWithAScanOfEverything) {
  SearchSpec spec = numbered_spec(1, 20);
  const PlanLayout layout(spec);
  OpenUnits open(layout);
  std::vector<bool> is_open(layout.num_units());
  std::vector<int> workers(layout.num_batches());
  uint64_t random = 1;
  for (int step = 0; step < 4'000; ++step) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const size_t slot = (random >> 33) % layout.num_units();
    const size_t batch = layout.batch(slot);
    switch ((random >> 20) % 4) {
      case 0:
        open.insert(slot);
        is_open[slot] = true;
        break;
      case 1:
        open.erase(slot);
        is_open[slot] = false;
        break;
      case 2:
        open.join(batch);
        ++workers[batch];
        break;
      default:
        if (workers[batch] == 0) break;
        open.leave(batch);
        --workers[batch];
    }
    // By scanning: the first batch nobody is on, else the largest number of units a worker.
    std::optional<size_t> best;
    double best_share = 0;
    for (size_t b = 0; b < layout.num_batches(); ++b) {
      std::optional<size_t> first;
      int count = 0;
      for (size_t s = 0; s < layout.num_units(); ++s) {
        if (layout.batch(s) != b || !is_open[s]) continue;
        if (!first) first = s;
        ++count;
      }
      EXPECT_EQ(open.first_of(b), first);
      if (!first) continue;
      const double share = workers[b] == 0 ? 1e9 : static_cast<double>(count) / (workers[b] + 1);
      if (share > best_share) {
        best = first;
        best_share = share;
      }
    }
    ASSERT_EQ(open.best(), best) << "step " << step;
  }
}

TEST(IndexSet, FindsTheNextMemberAcrossLevels) {
  IndexSet set(1'000'000);
  EXPECT_FALSE(set.first_from(0));
  for (const size_t member : {0, 63, 64, 4'095, 4'096, 999'999}) set.insert(member);
  EXPECT_EQ(set.count(), 6u);
  EXPECT_EQ(set.first_from(1), 63u);
  EXPECT_EQ(set.first_from(65), 4'095u);
  EXPECT_EQ(set.first_from(4'097), 999'999u);
  set.erase(999'999);
  EXPECT_FALSE(set.first_from(4'097));
  EXPECT_FALSE(set.contains(999'999));
}

}  // namespace
}  // namespace bitalloc
