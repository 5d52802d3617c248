#include "coordinator/redis_connection.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <sys/time.h>

#include <charconv>

namespace bitalloc {
namespace {

timeval to_timeval(int timeout_ms) {
  return {.tv_sec = timeout_ms / 1000, .tv_usec = (timeout_ms % 1000) * 1000};
}

std::string reply_text(const redisReply* reply) {
  const bool has_text = reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS ||
                        reply->type == REDIS_REPLY_ERROR;
  return has_text ? std::string(reply->str, reply->len) : std::string();
}

}  // namespace

Result<RedisAddress> parse_redis_address(const std::string& text) {
  RedisAddress address;
  address.text = text;
  const auto bad = [&] {
    return invalid_argument(fmt::format("'{}' is not the address of a Redis", text), "--redis",
                            "give unix:///path/to/redis.sock or tcp://host:port");
  };
  if (text.starts_with("unix://")) {
    address.unix_path = text.substr(7);
    if (address.unix_path.empty() || address.unix_path[0] != '/') return bad();
    return address;
  }
  if (!text.starts_with("tcp://")) return bad();
  const size_t colon = text.rfind(':');
  address.host = colon > 6 ? text.substr(6, colon - 6) : "";
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (address.host.empty() || error != std::errc() || stop != end || address.port < 1 ||
      address.port > 65535) {
    return bad();
  }
  return address;
}

RedisReply::RedisReply(redisReply* reply) : reply_(reply, freeReplyObject) {}
RedisReply RedisReply::child(size_t index) const {
  static redisReply nil = [] {
    redisReply reply{};
    reply.type = REDIS_REPLY_NIL;
    return reply;
  }();
  return RedisReply(
      std::shared_ptr<redisReply>(reply_, index < size() ? reply_->element[index] : &nil));
}
bool RedisReply::is_error() const { return reply_->type == REDIS_REPLY_ERROR; }
bool RedisReply::is_nil() const { return reply_->type == REDIS_REPLY_NIL; }
std::string RedisReply::text() const { return reply_text(reply_.get()); }
int64_t RedisReply::integer() const {
  return reply_->type == REDIS_REPLY_INTEGER ? reply_->integer : 0;
}
size_t RedisReply::size() const { return reply_->type == REDIS_REPLY_ARRAY ? reply_->elements : 0; }
std::string RedisReply::text(size_t child) const {
  return child < size() ? reply_text(reply_->element[child]) : std::string();
}
int64_t RedisReply::integer(size_t child) const {
  return child < size() && reply_->element[child]->type == REDIS_REPLY_INTEGER
             ? reply_->element[child]->integer
             : 0;
}

void RedisConnection::Free::operator()(redisContext* context) const { redisFree(context); }

RedisConnection::RedisConnection() = default;
RedisConnection::~RedisConnection() = default;

Status RedisConnection::connect(const RedisAddress& address, int timeout_ms) {
  const timeval timeout = to_timeval(timeout_ms);
  context_.reset(address.unix_path.empty()
                     ? redisConnectWithTimeout(address.host.c_str(), address.port, timeout)
                     : redisConnectUnixWithTimeout(address.unix_path.c_str(), timeout));
  if (context_ == nullptr || context_->err != 0) {
    const std::string reason = context_ ? context_->errstr : "out of memory";
    context_.reset();
    return unavailable(fmt::format("cannot connect to Redis at {}: {}", address.text, reason));
  }
  if (redisSetTimeout(context_.get(), timeout) != REDIS_OK) {
    return unavailable("cannot set the time-out of the Redis connection");
  }
  return authenticate(address);
}

Status RedisConnection::authenticate(const RedisAddress& address) {
  user_ = address.user.empty() ? "default" : address.user;
  if (address.password.empty()) return {};
  std::vector<std::string> arguments = {"AUTH"};
  if (!address.user.empty()) arguments.push_back(address.user);
  arguments.push_back(address.password);
  BA_RETURN_IF_ERROR(append(arguments));
  BA_ASSIGN_OR_RETURN(const RedisReply reply, read());
  if (!reply.is_error()) return {};
  return unavailable(
      fmt::format("Redis at {} refuses the user '{}' with this password: {}", address.text, user_,
                  reply.text()),
      address.user.empty() ? "--redis-password-file" : "--redis-user",
      "ACL LIST in Redis shows its users; the rule that bitalloc needs is coordinator/redis.acl");
}

Error RedisConnection::refused(const std::string& reply) const {
  if (reply.starts_with("NOAUTH")) {
    return unavailable("Redis asks for a password", "--redis-password-file",
                       "give --redis-user and --redis-password-file, or BITALLOC_REDIS_PASSWORD");
  }
  if (reply.starts_with("NOPERM") || reply.find("ACL failure") != std::string::npos) {
    return unavailable(fmt::format("Redis does not let the user '{}' do this: {}", user_, reply),
                       "--redis-user", "give it the rule in coordinator/redis.acl");
  }
  return unavailable(fmt::format("Redis: {}", reply));
}

void RedisConnection::disconnect() { context_.reset(); }

Status RedisConnection::append(const std::vector<std::string>& arguments) {
  if (context_ == nullptr) return unavailable("not connected to Redis");
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  for (const std::string& argument : arguments) {
    data.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  if (redisAppendCommandArgv(context_.get(), static_cast<int>(data.size()), data.data(),
                             sizes.data()) != REDIS_OK) {
    return unavailable(fmt::format("Redis: {}", context_->errstr));
  }
  return {};
}

Result<RedisReply> RedisConnection::read() {
  if (context_ == nullptr) return unavailable("not connected to Redis");
  void* reply = nullptr;
  if (redisGetReply(context_.get(), &reply) != REDIS_OK || reply == nullptr) {
    return unavailable(fmt::format("Redis: {}", context_->errstr));
  }
  return RedisReply(static_cast<redisReply*>(reply));
}

Result<RedisReply> RedisConnection::command(const std::vector<std::string>& arguments) {
  BA_RETURN_IF_ERROR(append(arguments));
  BA_ASSIGN_OR_RETURN(RedisReply reply, read());
  if (reply.is_error()) return refused(reply.text());
  return reply;
}

}  // namespace bitalloc
