// bitalloc-coordinator: flags, store, loop.
#include <malloc.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "common/files.h"
#include "common/process_usage.h"
#include "coordinator/front.h"
#include "coordinator/http/server.h"
#include "coordinator/redis_store.h"

namespace bitalloc {
namespace {

constexpr int kExitCannotStart = 1;
constexpr int kExitUsage = 2;
constexpr int kFlushMs = 1'500;
constexpr size_t kMaxEndpoints = 8;  // of one door

constexpr const char* kExamples = R"(Examples:
  redis-server --port 0 --unixsocket /tmp/redis.sock --appendonly yes --appendfsync always \
      --maxmemory-policy noeviction
  bitalloc-coordinator --redis unix:///tmp/redis.sock
  bitalloc-coordinator --redis tcp://127.0.0.1:6379 --client-endpoint tcp://0.0.0.0:7600 \
      --worker-endpoint tcp://0.0.0.0:7601 --checkpoint-dir /var/lib/bitalloc \
      --server-key /etc/bitalloc/server.key --allow /etc/bitalloc/allowed_keys \
      --redis-user bitalloc --redis-password-file /etc/bitalloc/redis-password

SIGHUP reads the allow-list again; so does a change of it, within a second.
Exit codes: 0 stopped by SIGTERM or SIGINT, 1 cannot start, another coordinator has taken over, or
Redis has lost acknowledged changes (start again: they are made again), 2 wrong flags.)";

struct Options {
  FrontOptions front;
  std::string server_key_file;
  std::string allow_file;
  std::vector<std::string> model_roots;
  bool plain_loopback = false;
  http::Options http;
  std::string redis = "unix:///tmp/redis.sock";
  std::string redis_user;
  std::string redis_password_file;
  bool allow_volatile = false;
  bool take_over = false;
  std::string log_level = "info";
  std::string log_file;
};

void add_http_flags(CLI::App& app, http::Options& options) {
  const char* group = "HTTP";
  app.add_option("--http", options.address,
                 "Serve the page and the REST API there: HOST:PORT, e.g. 127.0.0.1:7680. Needs a "
                 "token, and TLS from a proxy when others than this machine reach it")
      ->group(group);
  app.add_option("--http-token-file", options.token_file,
                 "File whose first line is the token of operators (else BITALLOC_HTTP_TOKEN)")
      ->group(group);
  app.add_option("--http-viewer-token-file", options.viewer_token_file,
                 "The same for those who may look only (else BITALLOC_HTTP_VIEWER_TOKEN)")
      ->group(group);
  app.add_flag("--http-read-only", options.read_only, "Refuse every change over HTTP")
      ->group(group);
  app.add_option("--http-host", options.hosts,
                 "A name under which clients know this server; others are refused. At a loopback "
                 "address its own names are good in any case")
      ->group(group);
  app.add_flag("--http-secure-cookie", options.secure_cookie,
               "Mark session cookies Secure although no proxy sends X-Forwarded-Proto: https")
      ->group(group);
}

void add_door_flags(CLI::App& app, Options& options) {
  options.front.client_endpoints = {"ipc:///tmp/bitalloc-client.sock"};
  options.front.worker_endpoints = {"ipc:///tmp/bitalloc-worker.sock"};
  app.add_option("--client-endpoint", options.front.client_endpoints,
                 "Where clients connect: ipc:///path, or tcp://address:port with keys; repeatable")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--worker-endpoint", options.front.worker_endpoints,
                 "Where workers connect; repeatable")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--server-key", options.server_key_file,
                 "The secret key of this coordinator (`bitalloc keys server`); TCP needs it")
      ->envname("BITALLOC_SERVER_KEY");
  app.add_option("--allow", options.allow_file,
                 "The public keys that may connect, and their roles (`bitalloc keys allow`)")
      ->envname("BITALLOC_ALLOW");
  app.add_flag("--plain-loopback", options.plain_loopback,
               "Without keys, listen at tcp:// of the loopback: trusts every user of this machine");
}

void add_redis_flags(CLI::App& app, Options& options) {
  app.add_option("--redis", options.redis, "unix:///path or tcp://host:port")
      ->capture_default_str();
  app.add_option("--redis-user", options.redis_user, "The ACL user to be in Redis")
      ->envname("BITALLOC_REDIS_USER");
  app.add_option("--redis-password-file", options.redis_password_file,
                 "File whose first line is the password of Redis; or BITALLOC_REDIS_PASSWORD");
  app.add_flag("--allow-volatile", options.allow_volatile,
               "Warn instead of refusing a Redis that can lose acknowledged results");
}

void add_flags(CLI::App& app, Options& options) {
  app.set_version_flag("--version", std::string(BITALLOC_VERSION));
  add_door_flags(app, options);
  add_redis_flags(app, options);
  app.add_option("--model-root", options.model_roots,
                 "Models of searches must be below this folder; repeatable (default: anywhere)")
      ->allow_extra_args(false)
      ->envname("BITALLOC_MODEL_ROOTS")
      ->delimiter(':');
  app.add_option("--checkpoint-dir", options.front.checkpoint_dir,
                 "Directory that gets a checkpoint of every search that is done");
  app.add_flag("--take-over", options.take_over,
               "Do not wait until the lock of another coordinator is stale; that one ends");
  app.add_option("--log-level", options.log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.add_option("--log-file", options.log_file, "Log there instead of on stderr");
  add_http_flags(app, options.http);
  app.footer(kExamples);
}

Status check_endpoints(const Options& options) {
  const FrontOptions& front = options.front;
  const DoorLock lock{front.server_secret_key, nullptr, options.plain_loopback};
  std::set<std::string> seen;
  for (const auto& [endpoints, flag] : {std::pair(&front.client_endpoints, "--client-endpoint"),
                                        {&front.worker_endpoints, "--worker-endpoint"}}) {
    if (endpoints->size() > kMaxEndpoints) {
      return invalid_argument(fmt::format("more than {} endpoints", kMaxEndpoints), flag);
    }
    for (const std::string& endpoint : *endpoints) {
      BA_RETURN_IF_ERROR(check_endpoint(endpoint, flag, lock));
      if (!seen.insert(endpoint).second) {
        return invalid_argument("clients and workers need endpoints of their own", flag);
      }
    }
  }
  return {};
}

// Keys come as a pair: what this coordinator is known by, and whom it knows.
Status load_server_key(Options& options) {
  if (options.server_key_file.empty() && options.allow_file.empty()) return {};
  if (options.server_key_file.empty() || options.allow_file.empty()) {
    return invalid_argument("--server-key and --allow go together", "--allow",
                            "`bitalloc keys server` and `bitalloc keys allow` make the files");
  }
  BA_ASSIGN_OR_RETURN(const NamedKey key, read_secret_key(options.server_key_file));
  if (key.role != KeyRole::kServer) {
    return invalid_argument(fmt::format("{} is the key of a {}, not of a server",
                                        options.server_key_file, key_role_name(key.role)),
                            "--server-key");
  }
  options.front.server_secret_key = key.key;
  return {};
}

Status load_model_roots(Options& options) {
  BA_ASSIGN_OR_RETURN(options.front.model_roots,
                      ModelRoots::make(options.model_roots, "--model-root"));
  return {};
}

Status check_options(const Options& options) {
  BA_RETURN_IF_ERROR(check_endpoints(options));
  const std::string& directory = options.front.checkpoint_dir;
  if (!directory.empty() && !std::filesystem::is_directory(directory)) {
    return invalid_argument(fmt::format("'{}' is not a directory", directory), "--checkpoint-dir");
  }
  return {};
}

Status set_up_log(const Options& options) {
  try {
    auto logger = options.log_file.empty()
                      ? spdlog::stderr_color_mt("coordinator")
                      : spdlog::basic_logger_mt("coordinator", options.log_file);
    spdlog::set_default_logger(std::move(logger));
  } catch (const spdlog::spdlog_ex& error) {
    return invalid_argument(error.what(), "--log-file");
  }
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  spdlog::flush_on(spdlog::level::info);
  return {};
}

Result<std::string> redis_password(const Options& options) {
  if (options.redis_password_file.empty()) {
    const char* password = std::getenv("BITALLOC_REDIS_PASSWORD");
    return std::string(password == nullptr ? "" : password);
  }
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(options.redis_password_file, 4'096));
  return text.substr(0, text.find_first_of("\r\n"));
}

Result<RedisStoreOptions> store_options(const Options& options) {
  RedisStoreOptions store;
  BA_ASSIGN_OR_RETURN(store.address, parse_redis_address(options.redis));
  store.address.user = options.redis_user;
  BA_ASSIGN_OR_RETURN(store.address.password, redis_password(options));
  if (!store.address.user.empty() && store.address.password.empty()) {
    return invalid_argument("--redis-user needs a password", "--redis-user",
                            "give --redis-password-file or BITALLOC_REDIS_PASSWORD");
  }
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  store.holder = fmt::format("process {} on {}", ::getpid(), host);
  store.allow_volatile = options.allow_volatile;
  store.take_over = options.take_over;
  return store;
}

int fail(const Error& error, int code) {
  spdlog::error("{}{}{}", error.message, error.hint.empty() ? "" : "; ", error.hint);
  return code;
}

// While this coordinator still has the lock: afterwards the file may be another one's.
void remove_socket_file(const std::string& endpoint) {
  if (!endpoint.starts_with("ipc://")) return;
  std::error_code error;
  std::filesystem::remove(endpoint.substr(6), error);
  if (error) spdlog::warn("{} stays: {}", endpoint, error.message());
}

void remove_socket_files(const FrontOptions& front) {
  for (const auto& endpoint : front.client_endpoints) remove_socket_file(endpoint);
  for (const auto& endpoint : front.worker_endpoints) remove_socket_file(endpoint);
}

// SIGHUP: the allow-list again.
void reread_on_hangup(boost::asio::signal_set& hangup, AccessList* access) {
  hangup.async_wait([&hangup, access](const boost::system::error_code& error, int) {
    if (error) return;
    if (access != nullptr) access->refresh(/*force=*/true);
    reread_on_hangup(hangup, access);
  });
}

// This coordinator has failed for good. Sockets are not closed in an orderly way here: that would
// remove the ipc files, which may belong to the coordinator that has taken over.
[[noreturn]] void end_now(const std::string& reason) {
  spdlog::critical("this coordinator ends: {}", reason);
  spdlog::shutdown();
  std::_Exit(kExitCannotStart);
}

int serve(Options options, std::unique_ptr<AccessList> access, RedisStoreOptions redis,
          std::optional<http::Settings> web_settings) {
  options.front.access = access.get();
  boost::asio::io_context loop;
  boost::asio::signal_set hangup(loop, SIGHUP);
  reread_on_hangup(hangup, access.get());
  std::unique_ptr<Front> front;
  // The callback runs on the store's thread, which starts with load(), after `front` is there.
  Result<std::unique_ptr<RedisStore>> store =
      RedisStore::open(std::move(redis), [&front](StoreEvent event) { front->post(event); });
  if (!store.ok()) return fail(store.error(), kExitCannotStart);
  // From here on the lock is ours to give back; before, a signal may simply end the process.
  boost::asio::signal_set signals(loop, SIGTERM, SIGINT);
  signals.async_wait([&](const boost::system::error_code&, int) {
    front->stop();
    remove_socket_files(options.front);
    if (!(*store)->close(kFlushMs)) spdlog::warn("Redis did not take the last changes in time");
    loop.stop();
  });

  options.front.store_durable = (*store)->durable();
  options.front.store_detail = (*store)->detail();
  front = std::make_unique<Front>(loop, **store, options.front, end_now);
  Result<std::vector<StoredSearch>> searches = (*store)->load();
  if (!searches.ok()) return fail(searches.error(), kExitCannotStart);
  const size_t count = searches->size();
  const Status started = front->start(std::move(searches).value());
  if (!started.ok()) return fail(started.error(), kExitCannotStart);
  ::malloc_trim(0);  // what loading took beside what it left
  spdlog::info("bitalloc-coordinator {} serves {} and {}; {}; {} searches", BITALLOC_VERSION,
               fmt::join(options.front.client_endpoints, ", "),
               fmt::join(options.front.worker_endpoints, ", "), (*store)->detail(), count);
  std::unique_ptr<http::Server> web;
  if (web_settings.has_value()) {
    web = std::make_unique<http::Server>(loop, *front, *web_settings);
    web->start(end_now);
  }

  loop.run();
  spdlog::info("stopped");
  spdlog::shutdown();
  std::_Exit(0);  // a solve or a stuck connection must not hold up the end
}

int run(int argc, char** argv) {
  CLI::App app{
      "The coordinator of bitalloc: hands the units of searches to workers, keeps results "
      "in Redis, answers budgets."};
  Options options;
  add_flags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  Status status = set_up_log(options);
  if (status.ok()) status = load_server_key(options);
  if (status.ok()) status = check_options(options);
  if (status.ok()) status = load_model_roots(options);
  if (!status.ok()) return fail(status.error(), kExitUsage);
  std::unique_ptr<AccessList> access;
  if (!options.allow_file.empty()) {
    Result<std::unique_ptr<AccessList>> opened = AccessList::open(options.allow_file);
    if (!opened.ok()) return fail(opened.error(), kExitUsage);
    access = std::move(opened).value();
  }
  Result<RedisStoreOptions> redis = store_options(options);
  if (!redis.ok()) return fail(redis.error(), kExitUsage);
  std::optional<http::Settings> web_settings;
  if (!options.http.address.empty()) {
    Result<http::Settings> settings = http::read_settings(options.http);
    if (!settings.ok()) return fail(settings.error(), kExitUsage);
    web_settings = std::move(settings).value();
  }
  std::signal(SIGPIPE, SIG_IGN);
  // Every connection is a descriptor.
  if (const Status raised = raise_descriptor_limit(); !raised.ok()) {
    spdlog::warn("{}", raised.error().message);
  }
  return serve(std::move(options), std::move(access), std::move(redis).value(),
               std::move(web_settings));
}

}  // namespace
}  // namespace bitalloc

int main(int argc, char** argv) { return bitalloc::run(argc, argv); }
