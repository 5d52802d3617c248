// The state machine by hand-made stories: what must follow from which event.
#include "coordinator/queue.h"

#include <gtest/gtest.h>

#include "coordinator/report.h"

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
  void submit(const std::string& id, const SearchSpec& spec, int64_t priority = 0) {
    event::Submit event;
    event.request = ++request_;
    event.record.id = id;
    event.record.spec = spec;
    event.record.fingerprint = fingerprint(spec);
    event.record.status.priority = priority;
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
  void ready(const std::string& epoch, int64_t credits) {
    handle(event::WorkerReady{WorkerEpoch(epoch), credits});
    store_all();
  }
  void deliver(const action::SendUnit& unit, double value = 0.5) {
    const Search* search = queue_.find(unit.search);
    handle(event::WorkerResult{unit.worker, unit.search, unit.fence, 1.0, "c",
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
  for (int i = 0; i < 31; ++i) {  // it lives, but does not know of the unit: the message was lost
    pass(1'000);
    beat("a", {});
  }
  store_all();
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
  EXPECT_EQ(status_json(queue_, *queue_.find("s"), now_)["units"]["failed"], 1);
  now_ += 1'001;
  ready("a", 4);  // takes every other unit, not the one that it failed on
  for (const auto& other : taken<action::SendUnit>()) EXPECT_NE(other.unit, unit.unit);
  ready("b", 4);
  const auto again = taken<action::SendUnit>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].unit, unit.unit);
}

TEST_F(QueueTest, ThirdFailureOfAUnitFailsTheSearchWithTheError) {
  submit("s", small_spec());
  hello("a");
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(state(), attempt == 0 ? SearchState::kQueued : SearchState::kRunning);
    now_ += 3'000;
    beat("a", {});
    ready("a", 1);
    const auto units = taken<action::SendUnit>();
    ASSERT_EQ(units.size(), 1u);
    fail(units[0], ErrorCode::kResourceExhausted, true);
  }
  ASSERT_EQ(state(), SearchState::kFailed);
  const Error error = *queue_.find("s")->status.error;
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  EXPECT_NE(error.message.find("because"), std::string::npos);
  submit("s", small_spec());  // goes on where it stopped
  EXPECT_NE(state(), SearchState::kFailed);
  EXPECT_FALSE(queue_.find("s")->status.error);
}

TEST_F(QueueTest, NonRetryableFailureFailsTheSearchAndRevokesTheRest) {
  submit("s", small_spec());
  hello("a", 2);
  const auto units = taken<action::SendUnit>();
  fail(units[0], ErrorCode::kInvalidArgument, false);
  EXPECT_EQ(state(), SearchState::kFailed);
  const auto revoked = taken<action::SendRevoke>();
  ASSERT_EQ(revoked.size(), 1u);
  EXPECT_EQ(revoked[0].unit, units[1].unit);
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

TEST_F(QueueTest, UnitThatTakesEveryWorkerWithItEndsTheSearch) {
  submit("s", small_spec());
  for (int i = 0; i < 10; ++i) {
    EXPECT_NE(state(), SearchState::kFailed);
    hello("w" + std::to_string(i), 1);
    pass(6'000);
  }
  EXPECT_EQ(state(), SearchState::kFailed);
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

}  // namespace
}  // namespace bitalloc
