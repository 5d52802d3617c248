// Adapter to hiredis: one synchronous connection that can pipeline. The only file with the store
// that knows hiredis.
//
// Thread rule: one thread at a time. The process must ignore SIGPIPE: hiredis writes to connections
// that may be gone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"

struct redisContext;
struct redisReply;

namespace bitalloc {

struct RedisAddress {
  std::string unix_path;  // or, when empty:
  std::string host;
  int port = 0;
  std::string user;      // of Redis's ACL; empty: the default one
  std::string password;  // empty: none
  std::string text;      // as given, for messages
};

// "unix:///run/redis.sock" or "tcp://host:port". Errors: kInvalidArgument.
Result<RedisAddress> parse_redis_address(const std::string& text);

// A reply, owned. Arrays are read through children.
class RedisReply {
 public:
  explicit RedisReply(redisReply* reply);

  bool is_error() const;
  bool is_nil() const;
  std::string text() const;  // of strings, statuses and errors; empty otherwise
  int64_t integer() const;   // of integers; 0 otherwise
  size_t size() const;       // children of an array
  std::string text(size_t child) const;
  int64_t integer(size_t child) const;
  RedisReply child(size_t index) const;  // one that is not there: nil

 private:
  explicit RedisReply(std::shared_ptr<redisReply> reply) : reply_(std::move(reply)) {}

  std::shared_ptr<redisReply> reply_;  // shared by copies and children of this value
};

class RedisConnection {
 public:
  RedisConnection();
  ~RedisConnection();

  // Connects anew (and authenticates). Errors: kUnavailable with the system's reason, or with the
  // flag at fault when Redis refuses user or password.
  Status connect(const RedisAddress& address, int timeout_ms);
  void disconnect();

  // Queues a command; read() gives its reply. Errors: kUnavailable.
  Status append(const std::vector<std::string>& arguments);
  Result<RedisReply> read();

  // Both. An error reply of Redis becomes kUnavailable with its text; what its ACL forbids names
  // the user.
  Result<RedisReply> command(const std::vector<std::string>& arguments);

 private:
  struct Free {
    void operator()(redisContext* context) const;
  };
  Status authenticate(const RedisAddress& address);
  Error refused(const std::string& reply) const;

  std::unique_ptr<redisContext, Free> context_;
  std::string user_;
};

}  // namespace bitalloc
