// A real redis-server, a real coordinator and a client of it, in a temporary folder, for tests.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/search_spec.h"
#include "common/tokens.h"
#include "common/zmq/socket.h"

namespace bitalloc::testing {

// A folder of its own, removed at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

class Child {
 public:
  Child() = default;
  explicit Child(const std::vector<std::string>& command, const std::string& log_file);
  ~Child();  // SIGKILL
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;

  void signal(int number);
  int wait();                     // exit code, or −signal
  bool wait_for(int timeout_ms);  // false: it still runs
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
};

// Extra arguments replace the durable settings one by one ("--appendfsync", "no").
Child start_redis(const TempDir& dir, const std::vector<std::string>& extra = {});
std::string redis_address(const TempDir& dir);  // unix://…

// Ready to answer when it returns (or has ended, or 10 s have passed).
Child start_coordinator(const TempDir& dir, const std::vector<std::string>& extra = {});
std::string client_endpoint(const TempDir& dir);
std::string worker_endpoint(const TempDir& dir);

// One request and its answer. Errors: what the coordinator says, kUnavailable after `timeout_ms`.
Result<wire::Message> call(const TempDir& dir, const std::string& type,
                           Json header = Json::object(), std::vector<std::string> blobs = {},
                           int timeout_ms = 5'000);
// Until the search has this state. Its status, or the last one after `timeout_ms`.
Json wait_for_state(const TempDir& dir, const std::string& id, const std::string& state,
                    int timeout_ms = 20'000);

// `rows` sites × 2 candidates × `sequences` sequences of 8 tokens.
struct SmallSearch {
  SearchSpec spec;
  TokenSet tokens;
  TokenSet calibration;
  std::vector<std::string> blobs() const;
};
SmallSearch small_search(int rows, int sequences, bool calibrated = false);

}  // namespace bitalloc::testing
