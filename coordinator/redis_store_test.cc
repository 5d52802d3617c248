// The store against a real redis-server in a folder of its own: durability through kill -9,
// refusals, the lock, first write wins.
#include "coordinator/redis_store.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <csignal>
#include <ctime>
#include <mutex>
#include <optional>

#include "coordinator/redis_scripts.h"
#include "tests/process/fake_worker.h"
#include "tests/process/fake_worker_service.h"

namespace bitalloc {
namespace {

using testing::Child;
using testing::SmallSearch;

// Collects what the store says.
class Listener {
 public:
  RedisStore::Callback callback() {
    return [this](StoreEvent event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_all();
    };
  }
  // Until the change `token` is durable.
  std::optional<StoreDone> wait_done(uint64_t token, int timeout_ms = 10'000) {
    std::optional<StoreDone> found;
    wait(timeout_ms, [&] {
      for (const StoreEvent& event : events_) {
        const auto* done = std::get_if<StoreDone>(&event);
        if (done != nullptr && done->token == token) found = *done;
      }
      return found.has_value();
    });
    return found;
  }
  template <typename E>
  std::optional<E> wait_for(int timeout_ms = 10'000) {
    std::optional<E> found;
    wait(timeout_ms, [&] {
      for (const StoreEvent& event : events_) {
        if (const auto* e = std::get_if<E>(&event)) found = *e;
      }
      return found.has_value();
    });
    return found;
  }

 private:
  template <typename Condition>
  void wait(int timeout_ms, Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), condition);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StoreEvent> events_;
};

class RedisStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { redis_ = testing::start_redis(dir_); }

  RedisStoreOptions options(const std::string& holder = "test") {
    RedisStoreOptions options;
    options.address = *parse_redis_address(testing::redis_address(dir_));
    options.holder = holder;
    options.lock_ttl_ms = 500;
    options.timeout_ms = 2'000;
    return options;
  }
  Result<std::unique_ptr<RedisStore>> open(Listener& listener) {
    return RedisStore::open(options(), listener.callback());
  }
  SearchRecord record(const std::string& id = "s") {
    SearchRecord record;
    record.id = id;
    record.spec = search_.spec;
    record.fingerprint = fingerprint(search_.spec);
    record.created_unix = 1'700'000'000;
    record.status.priority = 3;
    return record;
  }
  SharedTokens tokens() {
    return std::make_shared<SearchTokens>(SearchTokens{search_.tokens, search_.calibration});
  }
  PutResult put_result(size_t slot, double extra = 0) {
    UnitResult value = fitting_result(slot);
    if (!value.sums.empty()) value.sums[0] += extra;
    return PutResult{"s", value.unit, pack(value)};
  }
  UnitResult fitting_result(size_t slot) {
    const UnitId unit = plan_units(search_.spec)[slot];
    const bool scores = unit.kind == UnitKind::kScore;
    const TokenSet& all = scores ? search_.tokens : search_.calibration;
    const int64_t begin = unit.batch.value * search_.spec.batch_sequences;
    return testing::pseudo_result(search_.spec, unit,
                                  slice(all, begin, std::min(begin + 2, all.sequences)), {});
  }

  testing::TempDir dir_;
  Child redis_;
  SmallSearch search_ = testing::small_search(3, 4, true);
};

TEST_F(RedisStoreTest, EverythingComesBackAfterBothWereKilled) {
  Listener listener;
  {
    auto store = open(listener);
    ASSERT_TRUE(store.ok()) << store.error().message;
    ASSERT_TRUE((*store)->load()->empty());
    const UnitId leased = plan_units(search_.spec)[3];
    (*store)->put({1, PutSearch{record(), tokens()}});
    (*store)->put({2, PutLease{"s", leased, {WorkerEpoch("w with space"), Fence(4)}}});
    (*store)->put({3, put_result(0)});
    (*store)->put({4, put_result(2)});
    SearchStatus status{SearchState::kRunning, 7, 0.5, invalid_argument("why", "field", "hint")};
    (*store)->put({5, PutStatus{"s", status}});
    ASSERT_TRUE(listener.wait_done(5));
    redis_.signal(SIGKILL);
    redis_.wait();
  }
  redis_ = testing::start_redis(dir_);
  Listener second;
  auto store = open(second);
  ASSERT_TRUE(store.ok()) << store.error().message;
  const auto searches = (*store)->load();
  ASSERT_TRUE(searches.ok()) << searches.error().message;
  ASSERT_EQ(searches->size(), 1u);
  const SearchRecord& found = searches->front().record;
  EXPECT_EQ(to_json(found.spec), to_json(search_.spec));
  EXPECT_EQ(found.fingerprint.sha256, fingerprint(search_.spec).sha256);
  EXPECT_EQ(found.created_unix, 1'700'000'000);
  EXPECT_EQ(found.status.state, SearchState::kRunning);
  EXPECT_EQ(found.status.priority, 7);
  EXPECT_EQ(found.status.error->hint, "hint");
  EXPECT_EQ(found.fence.value, 4);
  ASSERT_EQ(found.leases.size(), 1u);
  EXPECT_EQ(found.leases.begin()->second.worker.value, "w with space");
  ASSERT_EQ(found.results.size(), 2u);
  ScoreTable table(search_.spec);
  for (const UnitResult& r : found.results) table.add(r);
  EXPECT_EQ(pack(table.result(plan_units(search_.spec)[2])), pack(fitting_result(2)));
  ASSERT_NE(searches->front().tokens, nullptr);
  EXPECT_EQ(tokens_sha256(searches->front().tokens->scored), search_.spec.tokens_sha256);
  EXPECT_EQ(tokens_sha256(searches->front().tokens->calibration), search_.spec.calibration_sha256);
}

TEST_F(RedisStoreTest, MoreResultsThanOneReplyHasComeBack) {
  search_ = testing::small_search(3, 1'400);  // 2,100 units
  Listener listener;
  {
    auto store = open(listener);
    ASSERT_TRUE((*store)->load().ok());
    (*store)->put({1, PutSearch{record(), tokens()}});
    const size_t count = plan_units(search_.spec).size();
    for (size_t slot = 0; slot < count; ++slot) (*store)->put({2 + slot, put_result(slot)});
    ASSERT_TRUE(listener.wait_done(1 + count));
  }
  Listener second;
  auto store = open(second);
  const auto searches = (*store)->load();
  ASSERT_TRUE(searches.ok()) << searches.error().message;
  ScoreTable table(search_.spec);
  for (const UnitResult& result : searches->front().record.results) table.add(result);
  EXPECT_TRUE(table.complete());
  const UnitId last = plan_units(search_.spec).back();
  EXPECT_EQ(pack(table.result(last)), pack(fitting_result(2'099)));
}

TEST_F(RedisStoreTest, FirstWriteOfAResultWins) {
  Listener listener;
  auto store = open(listener);
  ASSERT_TRUE((*store)->load().ok());
  (*store)->put({1, PutSearch{record(), tokens()}});
  (*store)->put({2, put_result(2)});
  (*store)->put({3, put_result(2)});
  (*store)->put({4, put_result(2, 0.5)});
  EXPECT_EQ(listener.wait_done(2)->outcome, StoreDone::Outcome::kNew);
  EXPECT_EQ(listener.wait_done(3)->outcome, StoreDone::Outcome::kDuplicate);
  const StoreDone conflict = *listener.wait_done(4);
  EXPECT_EQ(conflict.outcome, StoreDone::Outcome::kConflict);
  EXPECT_EQ(conflict.stored, put_result(2).packed);
}

// Changes of units go in groups, and what is in a group is done in its order.
TEST_F(RedisStoreTest, GroupsOfChangesKeepTheirOrderAndTheirOutcomes) {
  Listener listener;
  auto store = open(listener);
  ASSERT_TRUE((*store)->load().ok());
  redis_.signal(SIGSTOP);  // so that all of them gather
  const UnitId unit = plan_units(search_.spec)[2];
  const UnitId other = plan_units(search_.spec)[3];
  const auto of_other_search = [this](PutResult result) {
    result.search = "t";
    return result;
  };
  (*store)->put({1, PutSearch{record("s"), tokens()}});
  (*store)->put({2, PutSearch{record("t"), tokens()}});
  (*store)->put({3, PutLease{"s", unit, {WorkerEpoch("a"), Fence(1)}}});
  (*store)->put({4, PutLease{"t", unit, {WorkerEpoch("a"), Fence(7)}}});
  (*store)->put({5, put_result(2)});
  (*store)->put({6, PutLease{"s", other, {WorkerEpoch("b"), Fence(2)}}});
  (*store)->put({7, put_result(2, 0.5)});
  (*store)->put({8, of_other_search(put_result(2, 0.5))});
  (*store)->put({9, put_result(2)});
  (*store)->put({10, DropLease{"s", other, Fence(2)}});
  (*store)->put({11, PutResult{"nobody", unit, "x"}});
  redis_.signal(SIGCONT);
  ASSERT_TRUE(listener.wait_done(11));
  EXPECT_EQ(listener.wait_done(5)->outcome, StoreDone::Outcome::kNew);
  EXPECT_EQ(listener.wait_done(7)->outcome, StoreDone::Outcome::kConflict);
  EXPECT_EQ(listener.wait_done(7)->stored, put_result(2).packed);
  EXPECT_EQ(listener.wait_done(8)->outcome, StoreDone::Outcome::kNew);
  EXPECT_EQ(listener.wait_done(9)->outcome, StoreDone::Outcome::kDuplicate);
  RedisConnection redis;
  ASSERT_TRUE(redis.connect(options().address, 1'000).ok());
  EXPECT_EQ(redis.command({"HGET", "bitalloc:{s}:results", unit_name(unit)})->text(),
            put_result(2).packed);
  EXPECT_EQ(redis.command({"HGET", "bitalloc:{t}:results", unit_name(unit)})->text(),
            put_result(2, 0.5).packed);
  EXPECT_EQ(redis.command({"HLEN", "bitalloc:{s}:leases"})->integer(), 0);
  EXPECT_EQ(redis.command({"HLEN", "bitalloc:{t}:leases"})->integer(), 0);
  EXPECT_EQ(redis.command({"GET", "bitalloc:{s}:fence"})->text(), "2");
  EXPECT_EQ(redis.command({"GET", "bitalloc:{t}:fence"})->text(), "7");
  EXPECT_EQ(redis.command({"XLEN", "bitalloc:{s}:events"})->integer(), 2);  // state, one result
  EXPECT_EQ(redis.command({"EXISTS", "bitalloc:{nobody}:results"})->integer(), 0);
}

// Overload: admission ends long before the store refuses, and all that was taken becomes durable.
TEST_F(RedisStoreTest, FrozenRedisBoundsWhatIsTaken) {
  Listener listener;
  auto opened = RedisStore::open(options(), listener.callback());
  RedisStore& store = **opened;
  ASSERT_TRUE(store.load().ok());
  store.put({1, PutSearch{record(), tokens()}});
  ASSERT_TRUE(listener.wait_done(1));
  redis_.signal(SIGSTOP);
  const UnitId unit = plan_units(search_.spec)[2];
  uint64_t last = 1;
  constexpr size_t kReserve = 8'192;
  while (store.has_room(kReserve) && last < 2 * RedisStore::kCapacity) {
    ASSERT_TRUE(store.put({++last, DropLease{"s", unit, Fence(1)}}));
  }
  EXPECT_EQ(last, 1 + RedisStore::kCapacity - kReserve + 1);
  EXPECT_TRUE(store.has_room(kReserve - 1));
  redis_.signal(SIGCONT);
  ASSERT_TRUE(listener.wait_done(last));
  EXPECT_TRUE(store.has_room(kReserve));
}

TEST_F(RedisStoreTest, LargeResultsFillTheStoreByTheirBytes) {
  Listener listener;
  RedisStoreOptions small = options();
  small.capacity_bytes = 1 << 20;
  auto opened = RedisStore::open(small, listener.callback());
  RedisStore& store = **opened;
  ASSERT_TRUE(store.load().ok());
  store.put({1, PutSearch{record(), tokens()}});
  ASSERT_TRUE(listener.wait_done(1));
  redis_.signal(SIGSTOP);
  const UnitId unit = plan_units(search_.spec)[2];
  uint64_t last = 1;
  while (store.has_room(1) && last < 100) {
    ASSERT_TRUE(store.put({++last, PutResult{"s", unit, std::string(100'000, 'x')}}));
  }
  EXPECT_GE(last, 11u);
  EXPECT_LE(last, 1 + 11 + 70u);  // some more were on their way already
  redis_.signal(SIGCONT);
  EXPECT_EQ(listener.wait_done(last)->outcome, StoreDone::Outcome::kDuplicate);
  EXPECT_TRUE(store.has_room(1));
}

TEST_F(RedisStoreTest, OlderLeasesDoNotDropNewerOnesAndDeleteLeavesNothing) {
  Listener listener;
  auto store = open(listener);
  ASSERT_TRUE((*store)->load().ok());
  const UnitId unit = plan_units(search_.spec)[0];
  (*store)->put({1, PutSearch{record(), tokens()}});
  (*store)->put({2, PutLease{"s", unit, {WorkerEpoch("a"), Fence(1)}}});
  (*store)->put({3, PutLease{"s", unit, {WorkerEpoch("b"), Fence(2)}}});
  (*store)->put({4, DropLease{"s", unit, Fence(1)}});
  ASSERT_TRUE(listener.wait_done(4));
  RedisConnection redis;
  ASSERT_TRUE(redis.connect(options().address, 1'000).ok());
  EXPECT_EQ(redis.command({"HGET", "bitalloc:{s}:leases", unit_name(unit)})->text(), "2 b");
  EXPECT_EQ(redis.command({"GET", "bitalloc:{s}:fence"})->text(), "2");
  (*store)->put({5, DropLease{"s", unit, Fence(2)}});
  (*store)->put({6, DeleteSearch{"s"}});
  (*store)->put({7, put_result(0)});  // late: must not bring anything back
  ASSERT_TRUE(listener.wait_done(7));
  const RedisReply keys = *redis.command({"KEYS", "*"});
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys.text(0), "bitalloc:coordinator");
}

TEST_F(RedisStoreTest, LossIsToldAndNothingIsForgotten) {
  Listener listener;
  auto store = open(listener);
  ASSERT_TRUE((*store)->load().ok());
  (*store)->put({1, PutSearch{record(), tokens()}});
  ASSERT_TRUE(listener.wait_done(1));
  redis_.signal(SIGKILL);
  redis_.wait();
  (*store)->put({2, put_result(2)});
  ASSERT_TRUE(listener.wait_for<StoreLost>());
  (*store)->put({3, put_result(3)});
  EXPECT_FALSE(listener.wait_done(3, 300));
  redis_ = testing::start_redis(dir_);  // has forgotten the scripts, too
  ASSERT_TRUE(listener.wait_for<StoreBack>());
  ASSERT_TRUE(listener.wait_done(3));
  EXPECT_EQ(listener.wait_done(2)->outcome, StoreDone::Outcome::kNew);
  EXPECT_TRUE((*store)->close(2'000));
}

TEST_F(RedisStoreTest, FlushedScriptsAreLoadedAgain) {
  Listener listener;
  auto store = open(listener);
  ASSERT_TRUE((*store)->load().ok());
  RedisConnection redis;
  ASSERT_TRUE(redis.connect(options().address, 1'000).ok());
  ASSERT_TRUE(redis.command({"SCRIPT", "FLUSH"}).ok());
  (*store)->put({1, PutSearch{record(), tokens()}});
  EXPECT_TRUE(listener.wait_done(1));
}

// Simulator, seed 268: a result of a deleted search that was still on its way when the connection
// was lost became one of the search that came after it under the same name.
TEST_F(RedisStoreTest, WhatALostConnectionSentIsRefusedOnceTheNextOneHasWritten) {
  Listener listener;
  auto store = open(listener);
  ASSERT_TRUE((*store)->load().ok());
  RedisConnection redis;
  ASSERT_TRUE(redis.connect(options().address, 1'000).ok());
  const auto first = redis.command({"HMGET", "bitalloc:coordinator", "fence"});
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(redis.command({"SCRIPT", "FLUSH"}).ok());  // the store connects again
  (*store)->put({1, PutSearch{record(), tokens()}});
  ASSERT_TRUE(listener.wait_for<StoreBack>());
  ASSERT_TRUE(listener.wait_done(1));
  const std::string script = std::string(redis_scripts::kCheckLock) + redis_scripts::kRenew;
  const auto late = [&](int connection) {
    const auto reply = redis.command({"EVAL", script, "1", "bitalloc:coordinator",
                                      fmt::format("{}/0/{}", first->text(0), connection), "500"});
    return reply.ok() ? "taken" : reply.error().message;
  };
  EXPECT_NE(late(1).find("FENCED a later connection"), std::string::npos) << late(1);
  EXPECT_EQ(late(2), "taken");
  (*store)->put({2, put_result(2)});
  EXPECT_TRUE(listener.wait_done(2));
}

TEST_F(RedisStoreTest, VolatileSettingsAreRefusedWithTheirMending) {
  redis_ = Child();
  redis_ = testing::start_redis(dir_, {"--appendfsync", "everysec"});
  Listener listener;
  const auto refused = open(listener);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("appendfsync is everysec"), std::string::npos);
  EXPECT_NE(refused.error().hint.find("--appendfsync always"), std::string::npos);
  RedisStoreOptions allowed = options();
  allowed.allow_volatile = true;
  const auto store = RedisStore::open(allowed, listener.callback());
  ASSERT_TRUE(store.ok());
  EXPECT_FALSE((*store)->durable());
}

TEST_F(RedisStoreTest, SecondCoordinatorIsRefusedWhileTheFirstLives) {
  Listener listener;
  auto first = RedisStore::open(options("the first"), listener.callback());
  ASSERT_TRUE(first.ok() && (*first)->load().ok());
  const auto second = RedisStore::open(options("the second"), listener.callback());
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("the first"), std::string::npos);
  EXPECT_TRUE((*first)->close(2'000));  // gives the lock back
  EXPECT_TRUE(RedisStore::open(options("the second"), listener.callback()).ok());
}

// The lock names the time at which it is stale, by the clock of Redis's host.
TEST_F(RedisStoreTest, ClockThatWentBackDoesNotKeepTheLock) {
  Listener listener;
  ASSERT_TRUE((*open(listener))->load().ok());  // ends without giving the lock back
  RedisConnection redis;
  ASSERT_TRUE(redis.connect(options().address, 1'000).ok());
  const std::string in_an_hour = std::to_string((std::time(nullptr) + 3'600) * 1'000);
  ASSERT_TRUE(redis.command({"HSET", "bitalloc:coordinator", "expires_ms", in_an_hour}).ok());
  const auto next = open(listener);
  EXPECT_TRUE(next.ok()) << next.error().message;
}

TEST_F(RedisStoreTest, OlderCoordinatorsWritesAreRefusedAfterATakeOver) {
  Listener old_listener;
  auto old_store = RedisStore::open(options("the first"), old_listener.callback());
  ASSERT_TRUE((*old_store)->load().ok());
  RedisStoreOptions take_over = options("the second");
  take_over.take_over = true;
  Listener listener;
  auto store = RedisStore::open(take_over, listener.callback());
  ASSERT_TRUE(store.ok()) << store.error().message;
  (*old_store)->put({1, PutSearch{record(), tokens()}});
  const auto fenced = old_listener.wait_for<StoreFenced>();
  ASSERT_TRUE(fenced);
  EXPECT_NE(fenced->reason.find("the second"), std::string::npos);
  EXPECT_FALSE(old_listener.wait_done(1, 10));
  EXPECT_TRUE((*store)->load()->empty());
}

// What Redis would hold after a restart with the file of this moment.
class RedisStoreHistoryTest : public RedisStoreTest {
 protected:
  void keep_file() { copy_file("appendonlydir", "kept"); }
  void restart_with_kept_file() {
    redis_.signal(SIGKILL);
    redis_.wait();
    copy_file("kept", "appendonlydir");
    redis_ = testing::start_redis(dir_);
  }

 private:
  void copy_file(const std::string& from, const std::string& to) {
    std::filesystem::remove_all(dir_.path(to));
    std::filesystem::copy(dir_.path(from), dir_.path(to));
  }
};

TEST_F(RedisStoreHistoryTest, OlderFileEndsTheCoordinatorAndTheNextOneReadsIt) {
  Listener listener;
  auto store = open(listener);
  ASSERT_TRUE((*store)->load().ok());
  (*store)->put({1, PutSearch{record(), tokens()}});
  (*store)->put({2, put_result(0)});
  ASSERT_TRUE(listener.wait_done(2));
  keep_file();
  (*store)->put({3, put_result(2)});
  ASSERT_TRUE(listener.wait_done(3));
  restart_with_kept_file();
  (*store)->put({4, put_result(3)});  // must not be written on top of what is missing
  const auto fenced = listener.wait_for<StoreFenced>();
  ASSERT_TRUE(fenced);
  EXPECT_NE(fenced->reason.find("gone back to an older state"), std::string::npos)
      << fenced->reason;
  EXPECT_FALSE(listener.wait_done(4, 10));
  Listener second;
  auto next = open(second);
  ASSERT_TRUE(next.ok()) << next.error().message;
  EXPECT_EQ((*next)->load()->front().record.results.size(), 1u);
}

TEST_F(RedisStoreHistoryTest, SameFileAfterARestartIsNoLoss) {
  Listener listener;
  auto store = open(listener);
  ASSERT_TRUE((*store)->load().ok());
  (*store)->put({1, PutSearch{record(), tokens()}});
  (*store)->put({2, put_result(0)});
  ASSERT_TRUE(listener.wait_done(2));
  for (uint64_t token : {3, 4}) {
    keep_file();
    restart_with_kept_file();
    (*store)->put({token, put_result(token)});
    EXPECT_TRUE(listener.wait_done(token));
  }
  EXPECT_FALSE(listener.wait_for<StoreFenced>(10));
}

// The file is from before the first one's lock: its fence must not be given out a second time.
TEST_F(RedisStoreHistoryTest, FenceIsNotGivenOutAgainFromAnOlderFile) {
  const auto fence = [&] {
    RedisConnection redis;
    EXPECT_TRUE(redis.connect(options().address, 1'000).ok());
    return redis.command({"HGET", "bitalloc:coordinator", "fence"})->text();
  };
  Listener listener;
  ASSERT_TRUE((*open(listener))->load().ok());
  keep_file();
  RedisStoreOptions take_over = options();
  take_over.take_over = true;
  auto first = RedisStore::open(take_over, listener.callback());
  ASSERT_TRUE(first.ok() && (*first)->load().ok());
  const std::string of_the_first = fence();
  restart_with_kept_file();
  Listener second_listener;
  auto second = RedisStore::open(take_over, second_listener.callback());
  ASSERT_TRUE(second.ok() && (*second)->load().ok());
  EXPECT_NE(fence(), of_the_first);
  EXPECT_TRUE(listener.wait_for<StoreFenced>());
  (*second)->put({1, PutSearch{record(), tokens()}});
  EXPECT_TRUE(second_listener.wait_done(1));
}

TEST_F(RedisStoreTest, RedisThatIsStillLoadingIsWaitedFor) {
  RedisConnection redis;
  ASSERT_TRUE(redis.connect(options().address, 20'000).ok());
  const std::string fill = "for i = 1, 10000 do redis.call('SET', 'k' .. i, i) end";
  ASSERT_TRUE(redis.command({"EVAL", fill, "0"}).ok());
  redis_.signal(SIGKILL);
  redis_.wait();
  redis_ = testing::start_redis(dir_, {"--key-load-delay", "100"});  // µs a command
  RedisConnection early;
  ASSERT_TRUE(early.connect(options().address, 5'000).ok());
  EXPECT_NE(early.command({"PING"}).error().message.find("LOADING"), std::string::npos);
  Listener listener;
  const auto store = open(listener);
  EXPECT_TRUE(store.ok()) << store.error().message;
}

TEST_F(RedisStoreTest, DamagedSearchIsLeftAloneAndTheOthersAreServed) {
  Listener listener;
  {
    auto store = open(listener);
    ASSERT_TRUE((*store)->load().ok());
    (*store)->put({1, PutSearch{record("bad"), tokens()}});
    (*store)->put({2, PutSearch{record("good"), tokens()}});
    ASSERT_TRUE(listener.wait_done(2));
  }
  RedisConnection redis;
  ASSERT_TRUE(redis.connect(options().address, 1'000).ok());
  ASSERT_TRUE(redis.command({"HSET", "bitalloc:{bad}:spec", "spec", "{}"}).ok());
  auto store = open(listener);
  const auto searches = (*store)->load();
  ASSERT_TRUE(searches.ok());
  ASSERT_EQ(searches->size(), 1u);
  EXPECT_EQ(searches->front().record.id, "good");
}

TEST(RedisAddressTest, IsCheckedBeforeUse) {
  EXPECT_EQ(parse_redis_address("tcp://127.0.0.1:6379")->port, 6379);
  EXPECT_EQ(parse_redis_address("unix:///tmp/x")->unix_path, "/tmp/x");
  for (const char* text : {"", "redis", "unix://", "unix://x", "tcp://", "tcp://h",
                           "tcp://h:", "tcp://h:0", "tcp://h:70000", "tcp://h:1x", "tcp://:1"}) {
    EXPECT_FALSE(parse_redis_address(text).ok()) << text;
  }
}

}  // namespace
}  // namespace bitalloc
