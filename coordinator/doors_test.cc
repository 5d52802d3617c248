// Who gets in and what he may say: the real coordinator over real sockets, with keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zmq.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "common/files.h"
#include "common/process_usage.h"
#include "common/score_table.h"
#include "tests/process/fake_worker.h"
#include "tests/process/fake_worker_service.h"
#include "tests/process/locked_service.h"

namespace bitalloc::testing {
namespace {

using ::testing::HasSubstr;

void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::string text_of(const std::string& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

int count_in(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class Doors : public ::testing::Test {
 protected:
  void SetUp() override {
    redis_ = start_redis(dir_);
    client_port_ = free_port();
    worker_port_ = free_port();
    viewer_ = keys_.add(KeyRole::kViewer, "viewer");
    client_ = keys_.add(KeyRole::kClient, "client");
    admin_ = keys_.add(KeyRole::kAdmin, "admin");
    worker_ = keys_.add(KeyRole::kWorker, "worker");
    coordinator_ = start_coordinator(dir_, keys_.flags(client_port_, worker_port_));
  }
  void TearDown() override {
    if (HasFailure()) std::cerr << text_of(dir_.path("coordinator.log"));
  }

  Error refusal(const std::optional<CurveClient>& keys, int port) {
    Peer peer(port, keys);
    const auto reply = peer.ask("info");
    EXPECT_FALSE(reply.ok());
    return reply.ok() ? Error{} : reply.error();
  }
  // Nobody gets in by having been first: afterwards the service still answers who may enter.
  void expect_service() {
    Peer peer(client_port_, client_);
    const auto reply = peer.ask("info");
    ASSERT_TRUE(reply.ok()) << reply.error().message;
    EXPECT_EQ(reply->header["pid"], coordinator_.pid());
  }
  std::unique_ptr<FakeWorker> worker(const std::string& epoch, int unit_ms = 2) {
    FakeWorkerOptions options;
    options.endpoint = tcp_endpoint(worker_port_);
    options.epoch = epoch;
    options.keys = worker_;
    options.unit_ms = unit_ms;
    return std::make_unique<FakeWorker>(options);
  }
  Result<wire::Message> submit(const SmallSearch& search, const std::string& id = "s") {
    return call(dir_, "submit", {{"id", id}, {"spec", to_json(search.spec)}}, search.blobs());
  }

  TempDir dir_;
  KeyRing keys_{dir_};
  int client_port_ = 0;
  int worker_port_ = 0;
  CurveClient viewer_, client_, admin_, worker_;
  Child redis_;
  Child coordinator_;
};

// ---- handshakes ---------------------------------------------------------------------------------

TEST_F(Doors, ASearchRunsOverKeys) {
  ASSERT_TRUE(submit(small_search(3, 2)).ok());
  const auto one = worker("one");
  EXPECT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  Peer peer(client_port_, viewer_);
  EXPECT_EQ(peer.ask("status", {{"id", "s"}})->header["state"], "done");
}

TEST_F(Doors, RefuseWhoHasNoKey) {
  EXPECT_THAT(refusal(std::nullopt, client_port_).message, HasSubstr("asks for a key"));
  EXPECT_THAT(refusal(std::nullopt, worker_port_).message, HasSubstr("asks for a key"));
  expect_service();
}

TEST_F(Doors, RefuseAPassword) {
  const auto reply = Peer::with_password(client_port_)->ask("info");
  ASSERT_FALSE(reply.ok());
  EXPECT_THAT(reply.error().message, HasSubstr("asks for a key"));
  expect_service();
}

TEST_F(Doors, RefuseAKeyThatIsNotOnTheList) {
  const CurveClient stranger = keys_.add(KeyRole::kAdmin, "stranger", /*allowed=*/false);
  const Error error = refusal(stranger, client_port_);
  EXPECT_THAT(error.message, HasSubstr("refuses this key"));
  EXPECT_THAT(error.hint, HasSubstr("bitalloc keys allow"));
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  expect_service();
  pause_ms(1'200);
  EXPECT_THAT(text_of(dir_.path("coordinator.log")), HasSubstr(stranger.public_key));
}

// The public half of an allowed key is no secret: whoever has only that cannot use it.
TEST_F(Doors, RefuseAnAllowedPublicKeyWithAnotherSecret) {
  CurveClient thief = client_;
  thief.secret_key = make_key_pair().secret_key;
  EXPECT_FALSE(Peer(client_port_, thief).ask("info", Json::object(), 1'500).ok());
  expect_service();
}

TEST_F(Doors, DoNotPretendToBeAnotherServer) {
  CurveClient misled = client_;
  misled.server_public_key = make_key_pair().public_key;
  EXPECT_THAT(refusal(misled, client_port_).message, HasSubstr("hangs up while shaking hands"));
  expect_service();
}

TEST_F(Doors, TakeOnlyTheirOwnRoles) {
  EXPECT_THAT(refusal(worker_, client_port_).message, HasSubstr("refuses this key"));
  for (const CurveClient& keys : {viewer_, client_, admin_}) {
    EXPECT_THAT(refusal(keys, worker_port_).message, HasSubstr("refuses this key"));
  }
  expect_service();
}

// ---- roles --------------------------------------------------------------------------------------

// The table of coordinator/README.md, written out.
TEST_F(Doors, LetEveryRoleSayWhatIsItsOwn) {
  const std::set<std::string> reading = {"info",    "list",       "status",   "watch",
                                         "workers", "assignment", "frontier", "rebudget",
                                         "scores",  "checkpoint"};
  const std::set<std::string> changing = {"submit", "import", "cancel",
                                          "pause",  "resume", "reprioritize"};
  const std::set<std::string> admin_only = {"delete", "no-such-request"};
  const auto is_let = [&](const CurveClient& keys, const std::string& type) {
    Peer peer(client_port_, keys);
    const auto reply = peer.ask(type, {{"id", "none"}});
    return reply.ok() || reply.error().field != "key";  // whatever else is wrong with it
  };
  for (const std::string& type : reading) {
    EXPECT_TRUE(is_let(viewer_, type) && is_let(client_, type) && is_let(admin_, type)) << type;
  }
  for (const std::string& type : changing) {
    EXPECT_TRUE(!is_let(viewer_, type) && is_let(client_, type) && is_let(admin_, type)) << type;
  }
  for (const std::string& type : admin_only) {
    EXPECT_TRUE(!is_let(viewer_, type) && !is_let(client_, type) && is_let(admin_, type)) << type;
  }
  for (const std::string type : {"hello", "ready", "heartbeat", "result", "fail", "bye"}) {
    EXPECT_FALSE(is_let(client_, type)) << "a client speaks as a worker: " << type;
  }
  EXPECT_TRUE(call(dir_, "workers")->header["workers"].empty());
}

TEST_F(Doors, ARefusedDeleteDeletesNothing) {
  ASSERT_TRUE(submit(small_search(2, 2)).ok());
  Peer client(client_port_, client_);
  const auto reply = client.ask("delete", {{"id", "s"}});
  ASSERT_FALSE(reply.ok());
  EXPECT_THAT(reply.error().message, HasSubstr("role admin"));
  EXPECT_TRUE(client.ask("status", {{"id", "s"}}).ok());
  EXPECT_TRUE(Peer(client_port_, admin_).ask("delete", {{"id", "s"}}).ok());
  EXPECT_EQ(client.ask("status", {{"id", "s"}}).error().code, ErrorCode::kNotFound);
}

// ---- the list changes ---------------------------------------------------------------------------

TEST_F(Doors, ARevokedKeyHasNoFurtherWord) {
  Peer client(client_port_, client_);
  ASSERT_TRUE(client.ask("info").ok());
  keys_.revoke("client");
  pause_ms(2'500);  // the list is looked at once a second
  const auto reply = client.ask("info");
  ASSERT_FALSE(reply.ok()) << "an open connection of a revoked key";
  EXPECT_THAT(reply.error().message, HasSubstr("not allowed any more"));
  EXPECT_THAT(refusal(client_, client_port_).message, HasSubstr("refuses this key"));
  EXPECT_TRUE(Peer(client_port_, admin_).ask("info").ok());
}

TEST_F(Doors, ARevokedWorkerLosesItsUnitsToAnother) {
  ASSERT_TRUE(submit(small_search(4, 4)).ok());
  FakeWorkerOptions slow;
  slow.endpoint = tcp_endpoint(worker_port_);
  slow.epoch = "revoked";
  slow.keys = keys_.add(KeyRole::kWorker, "revoked");
  slow.unit_ms = 600'000;
  pause_ms(2'500);
  const FakeWorker lost(slow);
  for (int i = 0; i < 1'000 && lost.received().empty(); ++i) pause_ms(10);
  ASSERT_FALSE(lost.received().empty());
  keys_.revoke("revoked");
  const auto good = worker("good");
  EXPECT_EQ(wait_for_state(dir_, "s", "done", 60'000)["state"], "done");
  EXPECT_TRUE(lost.acknowledged().empty());
}

TEST_F(Doors, ANewKeyIsReadOnHangup) {
  const CurveClient late = keys_.add(KeyRole::kClient, "late");
  coordinator_.signal(SIGHUP);
  pause_ms(100);
  EXPECT_TRUE(Peer(client_port_, late).ask("info").ok());
}

TEST_F(Doors, AListThatIsBrokenChangesNothing) {
  ASSERT_TRUE(write_file_atomically(keys_.list(), "client ann not-a-key\n").ok());
  coordinator_.signal(SIGHUP);
  pause_ms(300);
  expect_service();
  EXPECT_THAT(text_of(dir_.path("coordinator.log")), HasSubstr("allowed_keys:1: "));
}

// ---- strangers who do not even shake hands ------------------------------------------------------

TEST_F(Doors, AFloodOfStrangersStopsNothing) {
  constexpr int kConnections = 1'000;
  const auto one = worker("one", 10);
  const auto two = worker("two", 10);
  for (int i = 0; i < 1'000 && call(dir_, "info")->header["workers"] != 2; ++i) pause_ms(10);
  ASSERT_TRUE(submit(small_search(20, 20)).ok());
  const int descriptors = count_descriptors(coordinator_.pid());
  const int64_t bytes = resident_bytes(coordinator_.pid());
  Flood flood({client_port_, kConnections / 2, client_.server_public_key});
  Flood workers({worker_port_, kConnections / 2, client_.server_public_key});
  const Json status = wait_for_state(dir_, "s", "done", 240'000);
  EXPECT_EQ(status["state"], "done") << status;
  std::set<std::string> acknowledged = one->acknowledged();
  acknowledged.merge(two->acknowledged());
  EXPECT_EQ(acknowledged.size(), 20u * 10);  // sites × batches of two
  EXPECT_EQ(count_in(text_of(dir_.path("coordinator.log")), " is here"), 2) << "one was given up";
  flood.wait();
  workers.wait();
  EXPECT_GE(flood.made() + workers.made(), kConnections * 9 / 10);
  EXPECT_EQ(flood.still_open() + workers.still_open(), 0) << "strangers are not cut off";
  for (int i = 0; i < 100 && count_descriptors(coordinator_.pid()) > descriptors; ++i) {
    pause_ms(100);
  }
  EXPECT_LE(count_descriptors(coordinator_.pid()), descriptors) << "descriptors leak";
  EXPECT_LE(resident_bytes(coordinator_.pid()), bytes + (int64_t{64} << 20));
  expect_service();
}

// Strangers may use up every descriptor: whoever is in stays in, and when they are cut off others
// get in again.
TEST_F(Doors, OutOfDescriptorsItGoesOn) {
#ifdef __SANITIZE_ADDRESS__
  // It looks at memory through a pipe, and takes every object for a wrong one when there is none.
  GTEST_SKIP() << "the check of virtual tables in sanitizer builds needs descriptors itself";
#endif
  ASSERT_TRUE(submit(small_search(30, 20)).ok());
  const auto one = worker("one", 10);
  Peer client(client_port_, client_);
  ASSERT_TRUE(client.ask("info").ok());
  const auto most = static_cast<rlim_t>(count_descriptors(coordinator_.pid()) + 40);
  const rlimit limit = {most, most};
  ASSERT_EQ(::prlimit(coordinator_.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  Flood flood({client_port_, 500, client_.server_public_key});
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(client.ask("info").ok());
    pause_ms(100);
  }
  // Asked over the open connection: a new one over ipc:// ends the process (see doors.md).
  Json status;
  for (int i = 0; i < 2'400 && status != "done" && !coordinator_.wait_for(0); ++i) {
    const auto reply = client.ask("status", {{"id", "s"}});
    if (reply.ok()) status = reply->header.at("state");
    pause_ms(100);
  }
  EXPECT_EQ(status, "done");
  flood.wait();
  EXPECT_FALSE(coordinator_.wait_for(0)) << "the coordinator ended";
  bool in = false;
  for (int i = 0; i < 20 && !in; ++i) {
    in = Peer(client_port_, client_).ask("info", Json::object(), 3'000).ok();
  }
  EXPECT_TRUE(in);
}

// A greeting of 2010's ZMTP 1.0 has no mechanism to check: it must not count as plain.
TEST_F(Doors, RefuseTheOldProtocol) {
  ZmqContext context;
  void* raw = zmq_socket(context.handle(), ZMQ_STREAM);
  ASSERT_EQ(zmq_connect(raw, tcp_endpoint(client_port_).c_str()), 0);
  char id[64];
  const int id_size = zmq_recv(raw, id, sizeof id, 0);
  ASSERT_GT(id_size, 0);
  zmq_recv(raw, nullptr, 0, 0);  // connected
  std::string old("\x01\x00", 2);
  for (const std::string frame : {"", "BA1", "delete", "c", "{\"id\":\"s\"}"}) {
    old += static_cast<char>(frame.size() + 1);
    old += static_cast<char>(frame.size() < 10);  // more
    old += frame;
  }
  ASSERT_TRUE(submit(small_search(2, 2)).ok());
  zmq_send(raw, id, static_cast<size_t>(id_size), ZMQ_SNDMORE);
  zmq_send(raw, old.data(), old.size(), 0);
  pause_ms(500);
  EXPECT_TRUE(call(dir_, "status", {{"id", "s"}}).ok()) << "it was deleted without a key";
  int linger = 0;
  zmq_setsockopt(raw, ZMQ_LINGER, &linger, sizeof linger);
  zmq_close(raw);
  expect_service();
}

// ---- what is refused before it starts -----------------------------------------------------------

class Start : public ::testing::Test {
 protected:
  // Exit code and log.
  std::pair<int, std::string> start(const std::vector<std::string>& extra) {
    Child child = start_coordinator(dir_, extra);
    const int code = child.wait_for(10'000) ? child.wait() : -1;
    return {code, text_of(dir_.path("coordinator.log"))};
  }
  void expect_refusal(const std::vector<std::string>& extra, const std::string& text) {
    const auto [code, log] = start(extra);
    EXPECT_EQ(code, 2) << text;
    EXPECT_THAT(log, HasSubstr(text));
  }

  TempDir dir_;
  KeyRing keys_{dir_};
};

TEST_F(Start, NeedsKeysForTcp) {
  expect_refusal({"--client-endpoint", "tcp://0.0.0.0:7600"}, "needs keys");
  expect_refusal({"--worker-endpoint", "tcp://127.0.0.1:7601"}, "--plain-loopback");
  expect_refusal({"--plain-loopback", "--client-endpoint", "tcp://0.0.0.0:7600"}, "needs keys");
  expect_refusal({"--server-key", keys_.path("server.key")}, "go together");
  expect_refusal({"--allow", keys_.list()}, "go together");
}

TEST_F(Start, NeedsASecretThatIsOne) {
  const std::string key = keys_.path("server.key");
  keys_.add(KeyRole::kWorker, "w");
  expect_refusal({"--server-key", keys_.path("server.pub"), "--allow", keys_.list()},
                 "holds no secret key");
  expect_refusal({"--server-key", keys_.path("w.key"), "--allow", keys_.list()},
                 "is the key of a worker");
  expect_refusal({"--server-key", keys_.path("none.key"), "--allow", keys_.list()}, "none.key");
  std::filesystem::permissions(key, std::filesystem::perms(0644));
  expect_refusal({"--server-key", key, "--allow", keys_.list()}, "mode 0644");
}

TEST_F(Start, NeedsAListThatCanBeRead) {
  const std::string key = make_key_pair().public_key;
  for (const auto& [line, complaint] : std::vector<std::pair<std::string, std::string>>{
           {"client ann", "allowed_keys:2: 2 words"},
           {"king ann " + key, "allowed_keys:2: 'king' is not a role"},
           {"client an/n " + key, "allowed_keys:2: 'an/n' is not a name"},
           {"client ann " + key.substr(1), "allowed_keys:2: a key is 40 characters"},
           {"server s " + key, "a server's key allows nothing"},
           {"client a " + key + "\nviewer b " + key, "is there twice"}}) {
    ASSERT_TRUE(write_file_atomically(keys_.list(), "# comment\n" + line + "\n").ok());
    expect_refusal({"--server-key", keys_.path("server.key"), "--allow", keys_.list()}, complaint);
  }
}

TEST_F(Start, PlainLoopbackIsForThoseWhoAskForIt) {
  const Child redis = start_redis(dir_);
  const int port = free_port();
  const Child coordinator =
      start_coordinator(dir_, {"--plain-loopback", "--client-endpoint", tcp_endpoint(port)});
  EXPECT_TRUE(Peer(port, std::nullopt).ask("info").ok());
  const CurveClient keys = keys_.add(KeyRole::kClient, "c");
  // When the coordinator closes before its greeting has been read, "hangs up" is all that is known.
  std::string message;
  for (int i = 0; i < 10 && message.find("does not use keys") == std::string::npos; ++i) {
    const auto refused = Peer(port, keys).ask("info");
    ASSERT_FALSE(refused.ok());
    message = refused.error().message;
  }
  EXPECT_THAT(message, HasSubstr("does not use keys"));
}

// ---- models -------------------------------------------------------------------------------------

TEST_F(Start, ModelsComeFromTheirRoots) {
  const Child redis = start_redis(dir_);
  std::filesystem::create_directories(dir_.path("models/small"));
  std::filesystem::create_directory_symlink("/etc", dir_.path("models/escape"));
  expect_refusal({"--model-root", dir_.path("none")}, "is not a directory");
  const Child coordinator = start_coordinator(dir_, {"--model-root", dir_.path("models")});
  const auto submit = [&](const std::string& path) {
    SmallSearch search = small_search(2, 2);
    search.spec.model.path = path;
    return call(dir_, "submit", {{"id", "s"}, {"spec", to_json(search.spec)}}, search.blobs());
  };
  for (const std::string& path :
       {std::string("/etc"), dir_.path("models/../keys"), dir_.path("models/escape"),
        dir_.path("models/gone/../../keys"), std::string("models/small")}) {
    const auto reply = submit(path);
    ASSERT_FALSE(reply.ok()) << path;
    EXPECT_EQ(reply.error().field, "model.path") << path;
  }
  EXPECT_TRUE(call(dir_, "list")->header["searches"].empty());
  const auto good = submit(dir_.path("models/small"));
  EXPECT_TRUE(good.ok()) << good.error().message;
}

// ---- Redis --------------------------------------------------------------------------------------

class Redis : public ::testing::Test {
 protected:
  void start(const std::string& rule, const std::string& extra_user = "") {
    const std::string acl = dir_.path("users.acl");
    std::ofstream(acl) << "user default off\n" << rule << extra_user;
    std::ofstream(dir_.path("password")) << "s3cret\n";
    std::filesystem::permissions(dir_.path("password"), std::filesystem::perms(0600));
    redis_ = start_redis(dir_, {"--aclfile", acl});
  }
  // coordinator/redis.acl, with a password.
  static std::string shipped_rule() {
    std::string rule = text_of(std::string(BITALLOC_SOURCE_DIR) + "/coordinator/redis.acl");
    const std::string blank = "CHANGE-ME";
    EXPECT_NE(rule.find(blank), std::string::npos);
    return rule.replace(rule.find(blank), blank.size(), "s3cret");
  }
  std::vector<std::string> flags(const std::string& user = "bitalloc") const {
    return {"--redis-user", user, "--redis-password-file", dir_.path("password")};
  }
  void expect_failure(const std::vector<std::string>& flags, int code, const std::string& text) {
    Child child = start_coordinator(dir_, flags);
    ASSERT_TRUE(child.wait_for(20'000));
    EXPECT_EQ(child.wait(), code);
    EXPECT_THAT(text_of(dir_.path("coordinator.log")), HasSubstr(text));
  }
  void TearDown() override {
    if (HasFailure()) std::cerr << text_of(dir_.path("coordinator.log"));
  }

  TempDir dir_;
  Child redis_;
};

TEST_F(Redis, TheShippedRuleIsEnoughForEverything) {
  start(shipped_rule());
  Child coordinator = start_coordinator(dir_, flags());
  const SmallSearch search = small_search(4, 4, /*calibrated=*/true);
  const auto submit = [&](const std::string& id) {
    return call(dir_, "submit", {{"id", id}, {"spec", to_json(search.spec)}}, search.blobs());
  };
  ASSERT_TRUE(submit("s").ok());
  ASSERT_TRUE(submit("t").ok());
  EXPECT_TRUE(call(dir_, "reprioritize", {{"id", "s"}, {"priority", 3}}).ok());
  EXPECT_TRUE(call(dir_, "pause", {{"id", "t"}}).ok());
  {
    FakeWorkerOptions options;
    options.endpoint = worker_endpoint(dir_);
    options.epoch = "one";
    const FakeWorker one(options);
    EXPECT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
    EXPECT_TRUE(call(dir_, "resume", {{"id", "t"}}).ok());
    EXPECT_TRUE(call(dir_, "cancel", {{"id", "t"}}).ok());
  }
  const std::string checkpoint = call(dir_, "checkpoint", {{"id", "s"}})->blobs.at(0);
  EXPECT_TRUE(call(dir_, "delete", {{"id", "t"}}).ok());
  EXPECT_TRUE(call(dir_, "import", {{"id", "u"}}, {checkpoint}).ok());
  coordinator.signal(SIGKILL);
  coordinator.wait();
  coordinator = start_coordinator(dir_, flags());  // waits for the lock, loads everything
  EXPECT_EQ(call(dir_, "checkpoint", {{"id", "s"}})->blobs.at(0), checkpoint);
  EXPECT_EQ(call(dir_, "list")->header["searches"].size(), 2u);
  EXPECT_EQ(call(dir_, "info")->header["redis"]["durable"], true);
  coordinator.signal(SIGTERM);
  ASSERT_TRUE(coordinator.wait_for(5'000));
  EXPECT_EQ(coordinator.wait(), 0);
  EXPECT_THAT(text_of(dir_.path("coordinator.log")), ::testing::Not(HasSubstr("NOPERM")));
}

TEST_F(Redis, RefusalsNameWhatToMend) {
  start(shipped_rule(),
        "user lesser on >s3cret ~bitalloc:* -@all +info +config|get +script|load\n");
  expect_failure({"--redis-user", "bitalloc"}, 2, "--redis-user needs a password");
  expect_failure(flags("nobody"), 1, "refuses the user 'nobody'");
  expect_failure(flags("lesser"), 1, "coordinator/redis.acl");
  expect_failure({}, 1, "--redis-password-file");
  std::ofstream(dir_.path("password")) << "wrong\n";
  expect_failure(flags(), 1, "refuses the user 'bitalloc'");
}

}  // namespace
}  // namespace bitalloc::testing
