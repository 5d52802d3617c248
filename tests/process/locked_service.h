// A coordinator whose doors are open to the network (the loopback), with keys; and those who should
// not get in.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/zmq/keys.h"
#include "tests/process/fake_worker_service.h"

namespace bitalloc::testing {

// A port of the loopback that was free a moment ago.
int free_port();

// The server's key, an allow-list and the keys on it, in a folder of `dir`.
class KeyRing {
 public:
  explicit KeyRing(const TempDir& dir);

  // A key of that role. `allowed`: on the list, which a running coordinator reads by itself.
  CurveClient add(KeyRole role, const std::string& name, bool allowed = true);
  void revoke(const std::string& name);
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string list() const { return path("allowed_keys"); }
  // Flags of a coordinator: doors at `client_port` and `worker_port`, with these keys.
  std::vector<std::string> flags(int client_port, int worker_port) const;

 private:
  std::string folder_;
  std::vector<NamedKey> allowed_;
};

std::string tcp_endpoint(int port);

// One client's connection, which stays open.
class Peer {
 public:
  Peer(int port, const std::optional<CurveClient>& keys);
  // Before anything is asked: as a client of ZeroMQ's PLAIN mechanism.
  static std::unique_ptr<Peer> with_password(int port);

  // The reply. Errors: the coordinator's, the refusal of the connection, or kUnavailable
  // "silence" after `timeout_ms`.
  Result<wire::Message> ask(const std::string& type, Json header = Json::object(),
                            int timeout_ms = 10'000);

 private:
  ZmqContext context_;
  Socket socket_;
  int asked_ = 0;
};

// Connections that must not get in, made by threads of its own until `count` were made.
struct FloodOptions {
  int port = 0;
  int count = 0;  // a fifth each: no key, garbage, half open, an unknown key, a wrong server key
  std::string server_public_key;
};
class Flood {
 public:
  explicit Flood(FloodOptions options);
  ~Flood();  // stops early
  void wait();
  int made() const { return made_; }
  // Connections without encryption that the other side did not close in a minute.
  int still_open() const { return still_open_; }

 private:
  void raw(const std::string& greeting, int count);
  void encrypted(bool wrong_server, int count);

  const FloodOptions options_;
  std::atomic<int> made_{0};
  std::atomic<int> still_open_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace bitalloc::testing
