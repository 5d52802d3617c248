// The durable store: Redis through one thread, synchronous, pipelined, with group commit: what has
// gathered while a pipeline was on its way goes out as the next one, neighbouring changes of leases
// and results as one script call. So the busier it is, the more changes share an fsync. With
// `appendfsync always` a reply means that the change is on disk.
//
// Full policy: put() takes kCapacity changes; beyond, it refuses and takes nothing. The front stops
// admitting messages long before (has_room, which also counts the bytes of results), so a refusal
// is a defect.
//
// Loss of Redis: the thread tells StoreLost, connects again with growing pauses, verifies the lock
// and the settings, loads the scripts, and runs again everything that was not answered, in order.
// What the lost connection sent and Redis reads only then is refused.
// A newer coordinator's lock ends it: StoreFenced, and nothing is written any more.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <thread>

#include "coordinator/redis_connection.h"
#include "coordinator/store.h"

namespace bitalloc {

struct RedisStoreOptions {
  RedisAddress address;
  std::string holder;           // who we are, for the other side's messages
  bool allow_volatile = false;  // settings that lose data are only a warning
  bool take_over = false;       // do not wait for another coordinator's lock to become stale
  int lock_ttl_ms = 5'000;
  int timeout_ms = 5'000;                     // of connecting and of one reply
  size_t capacity_bytes = size_t{256} << 20;  // of results that wait
};

class RedisStore : public ResultStore {
 public:
  using Callback = std::function<void(StoreEvent)>;
  static constexpr size_t kCapacity = 32'768;

  // Connects, waits while Redis loads its file, checks version and settings, takes the lock (waits
  // at most lock_ttl_ms for a stale one). Errors: kUnavailable, or kInvalidArgument with what to
  // set.
  static Result<std::unique_ptr<RedisStore>> open(RedisStoreOptions options, Callback callback);
  ~RedisStore() override;

  Result<std::vector<StoredSearch>> load() override;
  bool put(StoreOp op) override;
  bool has_room(size_t count) const override;
  bool close(int timeout_ms) override;

  // "Redis 7.0.15, appendfsync always" or what makes it volatile.
  const std::string& detail() const { return detail_; }
  bool durable() const { return durable_; }

 private:
  enum Script {
    kRenew,
    kPutSearch,
    kPutStatus,
    kChangeUnits,
    kDelete,
    kPutFailure,
    kClearFailures,
    kCount
  };

  RedisStore(RedisStoreOptions options, Callback callback);

  Status prepare();  // connect, check, load scripts
  Status check_settings();
  Status load_scripts();
  Status take_lock();
  Status renew_lock(int ttl_ms);
  Status renew_lock_when_due();
  Result<StoredSearch> load_search(const std::string& id);
  Status load_results(SearchRecord& record);
  Result<SharedTokens> load_tokens(const std::string& id, const SearchSpec& spec);

  struct Call {  // what was sent for some neighbours of a batch
    size_t changes = 0;
    size_t replies = 0;  // the last one has the outcome of every change
  };

  void run();
  void wait_for_work(std::vector<StoreOp>& batch);
  bool closed_and_drained(const std::vector<StoreOp>& batch);
  Status run_batch(std::vector<StoreOp>& batch);
  Result<Call> send_front(std::span<const StoreOp> changes);
  Status receive(const Call& call, std::span<const StoreOp> changes);
  bool recover(const Error& cause);  // false: fenced or closing

  // The commands of a change that is not one of a unit.
  std::vector<std::vector<std::string>> commands(const StoreOp& op) const;
  // One command for changes of units.
  std::vector<std::string> change_units_command(std::span<const StoreOp> changes) const;
  std::vector<std::vector<std::string>> put_search_commands(const PutSearch& change) const;
  std::vector<std::string> eval(Script script, const std::vector<std::string>& keys,
                                const std::vector<std::string>& arguments) const;

  RedisStoreOptions options_;
  Callback callback_;
  RedisConnection connection_;
  std::array<std::string, kCount> script_sha_;
  std::string fence_;
  int64_t connection_number_ = 0;  // a later one's first write ends what an earlier one sent
  int64_t changes_ = 0;            // that Redis has acknowledged: it must never hold fewer
  std::string detail_;
  bool durable_ = false;
  std::chrono::steady_clock::time_point renew_at_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StoreOp> queue_;  // guarded
  size_t queue_bytes_ = 0;     // guarded: of the results in `queue_`
  size_t in_flight_ = 0;       // guarded
  bool closing_ = false;       // guarded
  bool stopped_ = false;       // guarded: the thread has ended
  bool drained_ = false;       // guarded: with everything durable
  std::thread thread_;
};

}  // namespace bitalloc
