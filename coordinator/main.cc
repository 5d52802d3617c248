// bitalloc-coordinator: flags, store, loop.
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <filesystem>

#include "common/files.h"
#include "coordinator/front.h"
#include "coordinator/redis_store.h"

namespace bitalloc {
namespace {

constexpr int kExitCannotStart = 1;
constexpr int kExitUsage = 2;
constexpr int kFlushMs = 1'500;

constexpr const char* kExamples = R"(Examples:
  redis-server --port 0 --unixsocket /tmp/redis.sock --appendonly yes --appendfsync always \
      --maxmemory-policy noeviction
  bitalloc-coordinator --redis unix:///tmp/redis.sock
  bitalloc-coordinator --redis tcp://127.0.0.1:6379 --client-endpoint tcp://127.0.0.1:7600 \
      --worker-endpoint tcp://127.0.0.1:7601 --checkpoint-dir /var/lib/bitalloc

Exit codes: 0 stopped by SIGTERM or SIGINT, 1 cannot start, another coordinator has taken over, or
Redis has lost acknowledged changes (start again: they are made again), 2 wrong flags.)";

struct Options {
  FrontOptions front;
  std::string redis = "unix:///tmp/redis.sock";
  std::string redis_password_file;
  bool allow_volatile = false;
  bool take_over = false;
  std::string log_level = "info";
  std::string log_file;
};

void add_flags(CLI::App& app, Options& options) {
  options.front.client_endpoint = "ipc:///tmp/bitalloc-client.sock";
  options.front.worker_endpoint = "ipc:///tmp/bitalloc-worker.sock";
  app.set_version_flag("--version", std::string(BITALLOC_VERSION));
  app.add_option("--client-endpoint", options.front.client_endpoint,
                 "Where clients connect: ipc:///path or tcp://127.0.0.1:port")
      ->capture_default_str();
  app.add_option("--worker-endpoint", options.front.worker_endpoint, "Where workers connect")
      ->capture_default_str();
  app.add_option("--redis", options.redis, "unix:///path or tcp://host:port")
      ->capture_default_str();
  app.add_option("--redis-password-file", options.redis_password_file,
                 "File whose first line is the password of Redis");
  app.add_option("--checkpoint-dir", options.front.checkpoint_dir,
                 "Directory that gets a checkpoint of every search that is done");
  app.add_flag("--allow-volatile", options.allow_volatile,
               "Warn instead of refusing a Redis that can lose acknowledged results");
  app.add_flag("--take-over", options.take_over,
               "Do not wait until the lock of another coordinator is stale; that one ends");
  app.add_option("--log-level", options.log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.add_option("--log-file", options.log_file, "Log there instead of on stderr");
  app.footer(kExamples);
}

Status check_options(const Options& options) {
  BA_RETURN_IF_ERROR(check_endpoint(options.front.client_endpoint, "--client-endpoint"));
  BA_RETURN_IF_ERROR(check_endpoint(options.front.worker_endpoint, "--worker-endpoint"));
  if (options.front.client_endpoint == options.front.worker_endpoint) {
    return invalid_argument("clients and workers need endpoints of their own", "--worker-endpoint");
  }
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

Result<RedisStoreOptions> store_options(const Options& options) {
  RedisStoreOptions store;
  BA_ASSIGN_OR_RETURN(store.address, parse_redis_address(options.redis));
  if (!options.redis_password_file.empty()) {
    BA_ASSIGN_OR_RETURN(const std::string text, read_file(options.redis_password_file, 4'096));
    store.address.password = text.substr(0, text.find_first_of("\r\n"));
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

int serve(Options options, RedisStoreOptions redis) {
  boost::asio::io_context loop;
  std::unique_ptr<Front> front;
  // The callback runs on the store's thread, which starts with load(), after `front` is there.
  Result<std::unique_ptr<RedisStore>> store =
      RedisStore::open(std::move(redis), [&front](StoreEvent event) { front->post(event); });
  if (!store.ok()) return fail(store.error(), kExitCannotStart);
  // From here on the lock is ours to give back; before, a signal may simply end the process.
  boost::asio::signal_set signals(loop, SIGTERM, SIGINT);
  signals.async_wait([&](const boost::system::error_code&, int) {
    front->stop();
    remove_socket_file(options.front.client_endpoint);
    remove_socket_file(options.front.worker_endpoint);
    if (!(*store)->close(kFlushMs)) spdlog::warn("Redis did not take the last changes in time");
    loop.stop();
  });

  options.front.store_durable = (*store)->durable();
  options.front.store_detail = (*store)->detail();
  // Sockets are not closed in an orderly way here: that would remove the ipc files, which belong to
  // the coordinator that has taken over.
  front = std::make_unique<Front>(loop, **store, options.front, [](const std::string& reason) {
    spdlog::critical("this coordinator ends: {}", reason);
    spdlog::shutdown();
    std::_Exit(kExitCannotStart);
  });
  Result<std::vector<StoredSearch>> searches = (*store)->load();
  if (!searches.ok()) return fail(searches.error(), kExitCannotStart);
  const size_t count = searches->size();
  const Status started = front->start(std::move(searches).value());
  if (!started.ok()) return fail(started.error(), kExitCannotStart);
  spdlog::info("bitalloc-coordinator {} serves {} and {}; {}; {} searches", BITALLOC_VERSION,
               options.front.client_endpoint, options.front.worker_endpoint, (*store)->detail(),
               count);

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
  if (status.ok()) status = check_options(options);
  if (!status.ok()) return fail(status.error(), kExitUsage);
  Result<RedisStoreOptions> redis = store_options(options);
  if (!redis.ok()) return fail(redis.error(), kExitUsage);
  std::signal(SIGPIPE, SIG_IGN);
  return serve(std::move(options), std::move(redis).value());
}

}  // namespace
}  // namespace bitalloc

int main(int argc, char** argv) { return bitalloc::run(argc, argv); }
