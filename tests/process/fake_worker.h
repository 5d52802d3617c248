// A worker without a model: the protocol is the real one over real sockets, the scores are numbers
// computed from the unit and its tokens. For tests of the coordinator under faults, where a model
// would only cost time.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/score_table.h"
#include "common/search_spec.h"
#include "common/tokens.h"
#include "common/zmq/socket.h"

namespace bitalloc::testing {

// Deterministic in the unit, the tokens and (for scores) the amax.
UnitResult pseudo_result(const SearchSpec& spec, const UnitId& unit, const TokenSet& batch,
                         const std::vector<float>& amax);

struct FakeWorkerOptions {
  std::string endpoint;
  std::string epoch;
  std::optional<CurveClient> keys;  // for tcp://
  int credits = 2;
  int unit_ms = 5;
  bool send_twice = false;      // every result
  std::string fail_code;        // every unit fails with this error code instead
  bool retryable = false;       // of those failures
  int fail_first = 1'000'000;   // how many units fail
  Json hello = Json::object();  // more fields of its hello
};

class FakeWorker {
 public:
  explicit FakeWorker(FakeWorkerOptions options);
  ~FakeWorker();  // without a goodbye: as if killed

  // Units as they were received and acknowledged, "unit#fence" and "unit".
  std::vector<std::string> received() const;
  std::set<std::string> acknowledged() const;
  void say_goodbye();  // bye, then stops

 private:
  struct Held {
    std::string search;
    std::string unit;
    int64_t fence = 0;
    wire::Message report;
    int64_t due_ms = 0;  // when the work is done, then when it is sent again
    bool finished = false;
  };

  void run();
  void handle(const wire::Message& message);
  void take_unit(const wire::Message& message);
  void work(int64_t now);
  void send(const std::string& type, Json header);
  void hello();
  void ready();

  const FakeWorkerOptions options_;
  ZmqContext context_;
  Socket socket_;
  std::vector<Held> held_;
  int failed_ = 0;
  int64_t next_heartbeat_ms_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<bool> bye_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> received_;   // guarded
  std::set<std::string> acknowledged_;  // guarded
  std::thread thread_;
};

}  // namespace bitalloc::testing
