// The simulator's model of Redis against the real one: the same changes in the same order to both,
// among them take-overs and changes of coordinators that were taken over; equal answers, equal
// contents at the end.
#include "tests/sim/redis_model.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "common/random.h"
#include "coordinator/redis_store.h"
#include "tests/process/fake_worker_service.h"
#include "tests/sim/scores.h"

namespace bitalloc::sim {
namespace {

constexpr int kChanges = 600;
constexpr int kWaitMs = 10'000;

// One coordinator's store and the last thing that it said.
class Store {
 public:
  explicit Store(const testing::TempDir& dir) {
    RedisStoreOptions options;
    options.address = *parse_redis_address(testing::redis_address(dir));
    options.holder = "test";
    options.take_over = true;
    store_ = *RedisStore::open(options, [this](StoreEvent event) {
      const std::lock_guard lock(mutex_);
      said_.push_back(std::move(event));
      changed_.notify_all();
    });
  }

  std::vector<StoredSearch> load() { return *store_->load(); }

  // Until the change is durable or refused.
  StoreEvent put(const StoreOp& op) {
    std::unique_lock lock(mutex_);
    said_.clear();
    EXPECT_TRUE(store_->put(op));
    changed_.wait_for(lock, std::chrono::milliseconds(kWaitMs), [this] { return !said_.empty(); });
    EXPECT_FALSE(said_.empty()) << "no answer";
    return said_.empty() ? StoreEvent(StoreLost{"no answer"}) : said_.back();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StoreEvent> said_;
  std::unique_ptr<RedisStore> store_;  // last: its thread uses the rest
};

class RandomChanges {
 public:
  explicit RandomChanges(uint64_t seed) : random_(seed) {}

  StoreOp next() {
    StoreOp op;
    op.token = ++token_;
    const std::string search = fmt::format("s{}", random_.below(3));
    const auto units = plan_units(spec(search, 0));
    const UnitId unit = units[random_.below(std::ssize(units))];
    const Fence fence(random_.between(1, 12));
    switch (random_.below(10)) {
      case 0:
        op.change = put_search(search);
        break;
      case 1:
        op.change = PutStatus{search, status()};
        break;
      case 2:
      case 3:
        op.change = PutLease{search, unit, {WorkerEpoch("w 1"), fence}};
        break;
      case 4:
        op.change = DropLease{search, unit, fence};
        break;
      case 5:
        if (random_.one_in(4)) {
          op.change = DeleteSearch{search};
          break;
        }
        [[fallthrough]];
      default:
        op.change = PutResult{search, unit, pack(result(search, unit))};
    }
    return op;
  }

 private:
  static SearchSpec spec(const std::string& search, int64_t version) {
    return make_spec(fmt::format("{} {}", search, version), "model", 2, 3, true);
  }
  SearchStatus status() {
    SearchStatus status;
    status.state = static_cast<SearchState>(random_.below(6));
    status.priority = random_.below(5);
    if (status.state == SearchState::kFailed) status.error = internal_error("why", "where", "how");
    return status;
  }
  UnitResult result(const std::string& search, const UnitId& unit) {
    UnitResult result = closed_result(spec(search, 0), unit);
    if (!result.sums.empty() && random_.one_in(4)) result.sums[0] += 1;
    return result;
  }
  PutSearch put_search(const std::string& search) {
    PutSearch put;
    put.record.id = search;
    put.record.spec = spec(search, random_.below(2));
    put.record.fingerprint = fingerprint(put.record.spec);
    put.record.created_unix = random_.below(1'000'000);
    put.record.status = status();
    if (random_.one_in(3)) {
      const UnitId unit = plan_units(put.record.spec)[0];
      put.record.results = {closed_result(put.record.spec, unit)};
    }
    return put;
  }

  Random random_;
  uint64_t token_ = 0;
};

std::string text(const std::vector<SearchRecord>& records) {
  std::string all;
  for (const SearchRecord& record : records) {
    all += fmt::format("{} {} {} {} {} tokens {}\n", record.id, record.fingerprint.sha256,
                       record.created_unix, to_json(record.status).dump(), record.fence.value,
                       record.has_tokens);
    for (const auto& [unit, lease] : record.leases) {
      all += fmt::format("  {} leased by {} under {}\n", unit_name(unit), lease.worker.value,
                         lease.fence.value);
    }
    std::map<UnitId, std::string> results;
    for (const UnitResult& result : record.results) results[result.unit] = pack(result);
    for (const auto& [unit, packed] : results) {
      all += fmt::format("  {} = {}\n", unit_name(unit), std::hash<std::string>()(packed));
    }
  }
  return all;
}

TEST(RedisModel, DoesWhatTheScriptsDoInARealRedis) {
  const testing::TempDir dir;
  const testing::Child redis = testing::start_redis(dir);
  RedisModel model;
  RandomChanges changes(20261130);
  Random random(7);
  auto holder = std::make_unique<Store>(dir);
  holder->load();
  int64_t fence = model.acquire(true, 5'000, 0).fence;
  int refused = 0;
  for (int i = 0; i < kChanges; ++i) {
    if (random.one_in(60)) {  // a newer coordinator; the older one tries once more
      auto newer = std::make_unique<Store>(dir);
      newer->load();
      const int64_t older = std::exchange(fence, model.acquire(true, 5'000, 0).fence);
      EXPECT_FALSE(model.holds(older));
      EXPECT_TRUE(std::holds_alternative<StoreFenced>(holder->put(changes.next())));
      ++refused;
      holder = std::move(newer);
    }
    const StoreOp op = changes.next();
    const StoreEvent said = holder->put(op);
    ASSERT_TRUE(model.holds(fence));
    const StoreDone expected = model.apply(op);
    const auto* done = std::get_if<StoreDone>(&said);
    ASSERT_TRUE(done != nullptr) << "change " << i;
    EXPECT_EQ(done->token, expected.token);
    EXPECT_EQ(done->outcome, expected.outcome) << "change " << i;
    EXPECT_EQ(done->stored, expected.stored) << "change " << i;
  }
  EXPECT_GT(refused, 3);
  std::vector<SearchRecord> stored;
  for (StoredSearch& search : Store(dir).load()) stored.push_back(std::move(search.record));
  EXPECT_EQ(text(model.load()), text(stored));
}

}  // namespace
}  // namespace bitalloc::sim
