// The HTTP front of the real coordinator binary over real sockets: what it answers is what ZeroMQ
// answers, and everything that it must refuse.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "common/secret_file.h"
#include "coordinator/http/raw_client.h"
#include "tests/process/fake_worker.h"
#include "tests/process/fake_worker_service.h"

namespace bitalloc::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kOperator = "operator-0123456789abcdef0123456789";
const std::string kViewer = "viewer-0123456789abcdef0123456789";
const std::string kApi = "/api/v1/searches";
const std::string kJson = "Content-Type: application/json\r\n";

std::string bearer(const std::string& token) { return "Authorization: Bearer " + token + "\r\n"; }

std::string request(const std::string& method, const std::string& target,
                    const std::string& headers = "", const std::string& body = "",
                    const std::string& host = "localhost") {
  std::string text = method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\n" + headers;
  if (!body.empty()) text += fmt::format("Content-Length: {}\r\n", body.size());
  return text + "\r\n" + body;
}

std::string read_all(const std::string& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

class Door : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(make_secret_file(dir_.path("token"), kOperator).ok());
    ASSERT_TRUE(make_secret_file(dir_.path("viewer"), kViewer).ok());
    redis_ = start_redis(dir_);
  }
  void TearDown() override {
    const std::string log = read_all(dir_.path("coordinator.log"));
    EXPECT_THAT(log, Not(HasSubstr(kOperator)));
    EXPECT_THAT(log, Not(HasSubstr(kViewer)));
    if (HasFailure()) std::cerr << log.substr(log.size() - std::min<size_t>(log.size(), 8'000));
  }

  void start(std::vector<std::string> extra = {}, const std::string& address = "127.0.0.1:0") {
    for (const std::string& flag :
         {std::string("--http"), address, std::string("--http-token-file"), dir_.path("token"),
          std::string("--http-viewer-token-file"), dir_.path("viewer")}) {
      extra.push_back(flag);
    }
    coordinator_ = start_coordinator(dir_, extra);
    port_ = 0;
    for (int i = 0; i < 1'000 && port_ == 0; ++i) {
      const std::string log = read_all(dir_.path("coordinator.log"));
      const size_t at = log.rfind("HTTP at http://127.0.0.1:");
      if (at != std::string::npos) port_ = std::stoi(log.substr(at + 25));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_NE(port_, 0);
  }

  Answer send(const std::string& bytes) const {
    RawClient client(port_);
    client.send(bytes);
    return client.read();
  }
  Answer get(const std::string& target, const std::string& headers = bearer(kOperator)) const {
    return send(request("GET", target, headers));
  }
  Answer post(const std::string& target, const std::string& body = "",
              const std::string& headers = bearer(kOperator)) const {
    return send(request("POST", target, (body.empty() ? "" : kJson) + headers, body));
  }
  // The cookie of a new session, "bitalloc_session=…".
  std::string log_in(const std::string& token = kOperator) const {
    const Answer answer = post("/login", Json{{"token", token}}.dump(), "");
    EXPECT_EQ(answer.status, 200) << answer.body;
    const std::string cookie = answer.headers.at("set-cookie");
    return "Cookie: " + cookie.substr(0, cookie.find(';')) + "\r\n";
  }
  void submit(const std::string& id = "s") {
    search_ = small_search(3, 4);
    const auto reply =
        call(dir_, "submit", {{"id", id}, {"spec", to_json(search_.spec)}}, search_.blobs());
    ASSERT_TRUE(reply.ok()) << reply.error().message;
  }
  std::unique_ptr<FakeWorker> worker(int unit_ms = 2) const {
    FakeWorkerOptions options;
    options.endpoint = worker_endpoint(dir_);
    options.epoch = "one";
    options.unit_ms = unit_ms;
    return std::make_unique<FakeWorker>(options);
  }

  TempDir dir_;
  Child redis_;
  Child coordinator_;
  SmallSearch search_;
  int port_ = 0;
};

// What changes from one moment to the next.
Json steady(Json json) {
  if (json.contains("assignment")) json["assignment"].erase("solve_ms");
  for (const char* list : {"assignments", "workers"}) {
    if (!json.contains(list) || !json[list].is_array()) continue;
    for (Json& row : json[list]) {
      row.erase("solve_ms");
      row.erase("heard_ms_ago");
    }
  }
  return json;
}

TEST_F(Door, AnswersAreThoseOfZeroMq) {
  start();
  submit();
  const auto one = worker();
  ASSERT_EQ(wait_for_state(dir_, "s", "done")["state"], "done");
  struct Case {
    std::string target;
    std::string type;
    Json header;
    std::string body;  // empty: GET
  };
  const std::vector<Case> cases = {
      {"/api/v1/info", "info", Json::object(), ""},
      {"/api/v1/workers", "workers", Json::object(), ""},
      {kApi, "list", Json::object(), ""},
      {kApi + "/s", "status", {{"id", "s"}}, ""},
      {kApi + "/s/frontier", "frontier", {{"id", "s"}}, ""},
      {kApi + "/s/assignment", "assignment", {{"id", "s"}}, ""},
      {kApi + "/s/assignment?bits=5&scores=true",
       "assignment",
       {{"id", "s"}, {"effective_bits", 5}, {"scores", true}},
       ""},
      {kApi + "/s/assignment?bits=5&confidence=true&smooth=true",
       "assignment",
       {{"id", "s"}, {"effective_bits", 5}, {"confidence", true}, {"smooth", true}},
       ""},
      {kApi + "/s/frontier?partial=true", "frontier", {{"id", "s"}, {"partial", true}}, ""},
      {kApi + "/s/assignment?bits=1", "assignment", {{"id", "s"}, {"effective_bits", 1}}, ""},
      {kApi + "/s/scores", "scores", {{"id", "s"}}, ""},
      {kApi + "/nobody", "status", {{"id", "nobody"}}, ""},
      {kApi + "/s/rebudget",
       "rebudget",
       {{"id", "s"}, {"budgets", {4.5, 7}}},
       R"({"budgets": [4.5, 7]})"},
      {kApi + "/s/rebudget", "rebudget", {{"id", "s"}, {"budgets", "no"}}, R"({"budgets": "no"})"},
  };
  for (const Case& c : cases) {
    const auto expected = call(dir_, c.type, c.header);
    const Answer got = c.body.empty() ? get(c.target) : post(c.target, c.body);
    if (expected.ok()) {
      EXPECT_EQ(got.status, 200) << c.target << got.body;
      EXPECT_EQ(steady(got.json()), steady(expected->header)) << c.target;
    } else {
      EXPECT_GE(got.status, 400) << c.target;
      EXPECT_EQ(got.headers.at("content-type"), "application/problem+json");
      EXPECT_EQ(got.json()["error"], error_to_json(expected.error())) << c.target;
      EXPECT_EQ(got.json()["status"], got.status);
    }
  }
}

TEST_F(Door, ErrorsHaveTheirStatus) {
  start();
  submit();
  EXPECT_EQ(get(kApi + "/nobody").status, 404);
  EXPECT_EQ(get(kApi + "/s/assignment").status, 503);  // not complete
  EXPECT_EQ(get(kApi + "/s/assignment?bits=many").status, 400);
  EXPECT_EQ(get(kApi + "/s/assignment?confidence=very").status, 400);
  EXPECT_EQ(get(kApi + "/s/frontier").status, 503);  // not complete
  EXPECT_EQ(get(kApi + "/s/assignment?bitz=5").json()["error"]["field"], "bitz");
  EXPECT_EQ(post(kApi + "/s/priority", R"({"priority": "high"})").status, 400);
  EXPECT_EQ(post(kApi + "/s/priority", R"({"priority": )").status, 400);
  EXPECT_EQ(post(kApi + "/s/priority", "[3]").status, 400);
  EXPECT_EQ(get("/api/v1/nothing").status, 404);
  EXPECT_EQ(get("/api/v2/searches").status, 404);
}

TEST_F(Door, ChangesHappen) {
  start();
  submit();
  EXPECT_EQ(post(kApi + "/s/pause").json()["state"], "paused");
  EXPECT_EQ(call(dir_, "status", {{"id", "s"}})->header["state"], "paused");
  EXPECT_EQ(post(kApi + "/s/resume").status, 200);
  EXPECT_EQ(post(kApi + "/s/priority", R"({"priority": 7, "id": "other"})").json()["priority"], 7);
  EXPECT_EQ(post(kApi + "/s/cancel").json()["state"], "cancelled");
  EXPECT_EQ(send(request("DELETE", kApi + "/s", bearer(kOperator))).status, 200);
  EXPECT_EQ(call(dir_, "status", {{"id", "s"}}).error().code, ErrorCode::kNotFound);
}

TEST_F(Door, NothingWithoutTheRightToken) {
  start();
  submit();
  for (const std::string& headers :
       {std::string(), bearer("wrong-0123456789abcdef0123456789"), bearer(kOperator + "x"),
        bearer(kOperator.substr(1)), bearer(""), "Authorization: Basic " + kOperator + "\r\n",
        "Authorization: " + kOperator + "\r\n",
        "Cookie: bitalloc_session=" + std::string(64, '0') + "\r\n",
        "Cookie: bitalloc_session=" + kOperator + "\r\n"}) {
    const Answer answer = get(kApi, headers);
    EXPECT_EQ(answer.status, 401) << headers;
    EXPECT_THAT(answer.headers.at("www-authenticate"), StartsWith("Bearer"));
    EXPECT_THAT(answer.body, Not(HasSubstr("paused")));
    EXPECT_EQ(post(kApi + "/s/pause", "", headers.starts_with("Auth") ? "" : headers).status, 401);
  }
  EXPECT_EQ(get(kApi + "/s/events", "").status, 401);
  EXPECT_NE(call(dir_, "status", {{"id", "s"}})->header["state"], "paused");
  // Without a secret: the page and whether the service is well.
  EXPECT_EQ(get("/", "").status, 200);
  EXPECT_EQ(get("/healthz", "").json(), (Json{{"live", true}, {"ready", true}}));
}

TEST_F(Door, ViewersOnlyLook) {
  start();
  submit();
  EXPECT_EQ(get(kApi + "/s", bearer(kViewer)).status, 200);
  EXPECT_EQ(get("/session", bearer(kViewer)).json()["role"], "viewer");
  for (const char* change : {"pause", "resume", "cancel", "priority", "rebudget"}) {
    EXPECT_EQ(post(kApi + "/s/" + change, "{}", bearer(kViewer)).status, 403) << change;
  }
  EXPECT_EQ(send(request("DELETE", kApi + "/s", bearer(kViewer))).status, 403);
  const std::string page = "Sec-Fetch-Site: same-origin\r\n";
  EXPECT_EQ(post(kApi + "/s/pause", "", log_in(kViewer) + page).status, 403);
  EXPECT_EQ(call(dir_, "status", {{"id", "s"}})->header["state"], "queued");
}

TEST_F(Door, ReadOnlyDoorChangesNothing) {
  start({"--http-read-only"});
  submit();
  EXPECT_EQ(get(kApi + "/s").status, 200);
  EXPECT_EQ(get("/session").json(), (Json{{"role", "operator"}, {"read_only", true}}));
  for (const char* change : {"pause", "resume", "cancel", "priority", "rebudget"}) {
    const Answer answer = post(kApi + "/s/" + change, "{}");
    EXPECT_EQ(answer.status, 403) << change;
    EXPECT_THAT(answer.json()["error"]["message"], HasSubstr("read-only"));
  }
  EXPECT_EQ(send(request("DELETE", kApi + "/s", bearer(kOperator))).status, 403);
  const std::string session = log_in() + "Sec-Fetch-Site: same-origin\r\n";
  EXPECT_EQ(post(kApi + "/s/pause", "", session).status, 403);
  EXPECT_EQ(call(dir_, "status", {{"id", "s"}})->header["state"], "queued");
}

TEST_F(Door, SessionsAreCookiesThatScriptsAndOtherSitesDoNotGet) {
  start();
  submit();
  const Answer answer = post("/login", Json{{"token", kOperator}}.dump(), "");
  ASSERT_EQ(answer.status, 200);
  const std::string cookie = answer.headers.at("set-cookie");
  EXPECT_THAT(
      cookie,
      ::testing::MatchesRegex(
          "bitalloc_session=[0-9a-f]{64}; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200"));
  const Answer behind_tls =
      post("/login", Json{{"token", kOperator}}.dump(), "X-Forwarded-Proto: https\r\n");
  EXPECT_THAT(behind_tls.headers.at("set-cookie"), HasSubstr("; Secure"));
  EXPECT_NE(behind_tls.headers.at("set-cookie").substr(0, 81), cookie.substr(0, 81));
  EXPECT_THAT(answer.body, Not(HasSubstr(kOperator)));

  const std::string session = log_in();
  EXPECT_EQ(get(kApi, session).status, 200);
  EXPECT_EQ(get("/session", session).json()["role"], "operator");
  EXPECT_EQ(get(kApi, "Cookie: other=1; " + session.substr(8)).status, 200);
  const Answer out = post("/logout", "", session);
  EXPECT_EQ(out.status, 204);
  EXPECT_THAT(out.headers.at("set-cookie"), HasSubstr("Max-Age=0"));
  EXPECT_EQ(get(kApi, session).status, 401);
}

TEST_F(Door, SecureCookieWhenToldSo) {
  start({"--http-secure-cookie"});
  const Answer answer = post("/login", Json{{"token", kOperator}}.dump(), "");
  EXPECT_THAT(answer.headers.at("set-cookie"), HasSubstr("; Secure"));
}

TEST_F(Door, OtherSitesCannotUseTheSession) {
  start();
  submit();
  const std::string session = log_in();
  const std::string own = fmt::format("Origin: http://localhost\r\n");
  for (const std::string& from :
       {std::string(), std::string("Origin: http://evil.example\r\n"),
        std::string("Origin: null\r\n"), std::string("Origin: http://localhost.evil.example\r\n"),
        std::string("Origin: http://localhost:9\r\n"),
        std::string("Sec-Fetch-Site: cross-site\r\n"), std::string("Sec-Fetch-Site: same-site\r\n"),
        "Sec-Fetch-Site: cross-site\r\n" + own,
        std::string("Sec-Fetch-Site: cross-site\r\nX-Bitalloc: 1\r\n")}) {
    EXPECT_EQ(post(kApi + "/s/pause", "", session + from).status, 403) << from;
  }
  EXPECT_EQ(post("/logout", "", session + "Origin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(
      post("/login", Json{{"token", kOperator}}.dump(), "Origin: http://evil.example\r\n").status,
      403);
  EXPECT_EQ(send(request("POST", kApi + "/s/priority", session + own, "priority=1")).status, 415);
  EXPECT_EQ(call(dir_, "status", {{"id", "s"}})->header["state"], "queued");
  for (const std::string& from :
       {own, std::string("Sec-Fetch-Site: same-origin\r\n"), std::string("X-Bitalloc: 1\r\n")}) {
    EXPECT_EQ(post(kApi + "/s/pause", "", session + from).status, 200) << from;
  }
}

TEST_F(Door, GuessingIsSlowedDown) {
  start();
  const std::string wrong = Json{{"token", "wrong-0123456789abcdef0123456789"}}.dump();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(post("/login", wrong, "").status, 401);
  const Answer answer = post("/login", wrong, "");
  EXPECT_EQ(answer.status, 429);
  const int wait_s = std::stoi(answer.headers.at("retry-after"));
  EXPECT_TRUE(wait_s >= 1 && wait_s <= 61) << wait_s;
  // No login from here for now, not even with the right token; who sends that one itself gets in.
  EXPECT_EQ(post("/login", Json{{"token", kOperator}}.dump(), "").status, 429);
  EXPECT_EQ(get(kApi, bearer("wrong-0123456789abcdef0123456789")).status, 429);
  EXPECT_EQ(get(kApi).status, 200);
}

TEST_F(Door, EveryAnswerIsLocked) {
  start();
  submit();
  const std::vector<Answer> answers = {get("/", ""),
                                       get("/app.js", ""),
                                       get(kApi),
                                       get(kApi, ""),
                                       get("/nothing"),
                                       get("/healthz", ""),
                                       send("nonsense\r\n\r\n"),
                                       get(kApi + "/s/events"),
                                       send(request("OPTIONS", kApi))};
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.headers.at("content-security-policy"),
              "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
              "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
        << answer.head;
    EXPECT_EQ(answer.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(answer.headers.at("referrer-policy"), "no-referrer");
    EXPECT_EQ(answer.headers.at("x-frame-options"), "DENY");
    EXPECT_EQ(answer.headers.at("cache-control"), "no-store");
    EXPECT_FALSE(answer.headers.contains("server"));
    EXPECT_FALSE(answer.headers.contains("access-control-allow-origin"));
  }
  // The page obeys its own policy: no script or style inside it.
  const std::string page = answers[0].body;
  EXPECT_THAT(page, Not(HasSubstr("<style")));
  EXPECT_THAT(page, Not(HasSubstr("style=")));
  EXPECT_THAT(page, Not(::testing::ContainsRegex("<script[^>]*>[^<]")));
  EXPECT_THAT(page, Not(::testing::ContainsRegex(" on[a-z]+=")));
  EXPECT_EQ(answers[1].headers.at("content-type"), "text/javascript; charset=utf-8");
}

TEST_F(Door, OtherNamesForThisHostAreRefused) {
  start();
  const auto status = [&](const std::string& host) {
    return send(request("GET", kApi, bearer(kOperator), "", host)).status;
  };
  EXPECT_EQ(status("evil.example"), 421);  // a name that was rebound to 127.0.0.1
  EXPECT_EQ(status(fmt::format("evil.example:{}", port_)), 421);
  EXPECT_EQ(status("127.evil.example"), 421);
  EXPECT_EQ(status("localhost.evil.example"), 421);
  EXPECT_EQ(status(""), 421);
  EXPECT_EQ(send("GET / HTTP/1.0\r\n\r\n").status, 421);
  EXPECT_EQ(send("GET / HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(status("localhost"), 200);
  EXPECT_EQ(status(fmt::format("127.0.0.1:{}", port_)), 200);
  EXPECT_EQ(status("[::1]:80"), 200);
}

TEST_F(Door, ConfiguredNamesAreGood) {
  start({"--http-host", "bitalloc.example"});
  EXPECT_EQ(send(request("GET", kApi, bearer(kOperator), "", "bitalloc.example")).status, 200);
  EXPECT_EQ(send(request("GET", kApi, bearer(kOperator), "", "evil.example")).status, 421);
}

TEST_F(Door, MalformedAndOversizedRequestsAreRefused) {
  start();
  const std::string head = "GET " + kApi + " HTTP/1.1\r\nHost: localhost\r\n" + bearer(kOperator);
  const std::vector<std::pair<std::string, int>> cases = {
      {"nonsense\r\n\r\n", 400},
      {std::string("\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", 11) + "\r\n\r\n", 400},  // TLS
      {"GET / HTTP/9.9\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /..%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /app.js%00.html HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {head + "Host: localhost\r\n\r\n", 400},
      {head + bearer(kViewer) + "\r\n", 400},
      {head + "no colon\r\n\r\n", 400},
      {head + "Content-Length: -1\r\n\r\n", 400},
      {head + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {head + "Expect: 100-continue\r\n\r\n", 417},
      {head + "X: " + std::string(20'000, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(20'000, 'x') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 431},
      {request("POST", kApi + "/s/rebudget", bearer(kOperator) + kJson, std::string(70'000, ' ')),
       413},
      {head + "Transfer-Encoding: chunked\r\n\r\n12000\r\n" + std::string(0x12000, 'x') +
           "\r\n0\r\n\r\n",
       413},
      {request("BREW", kApi, bearer(kOperator)), 501},
      {request("PUT", kApi, bearer(kOperator)), 501},
      {request("POST", kApi, bearer(kOperator)), 405},
      {request("DELETE", "/healthz", bearer(kOperator)), 405},
  };
  for (const auto& [bytes, status] : cases) {
    EXPECT_EQ(send(bytes).status, status) << bytes.substr(0, 100);
  }
  std::string deep = R"({"budgets": )" + std::string(200, '[') + std::string(200, ']') + "}";
  EXPECT_EQ(post(kApi + "/s/rebudget", deep).status, 400);
  EXPECT_EQ(get(kApi).status, 200);
}

TEST_F(Door, MethodsAndConnectionsAreHttp) {
  start();
  submit();
  RawClient client(port_);
  client.send(request("HEAD", kApi + "/s", bearer(kOperator)));
  const Answer head = client.read(10'000, /*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_GT(std::stoi(head.headers.at("content-length")), 100);
  // Two at once on the same connection, answered in order.
  client.send(request("GET", kApi + "/s", bearer(kOperator)) + request("GET", "/healthz"));
  EXPECT_EQ(client.read().json()["id"], "s");
  EXPECT_EQ(client.read().json()["live"], true);
  client.send(request("OPTIONS", kApi + "/s"));
  const Answer options = client.read();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "OPTIONS, DELETE, GET, HEAD");
  EXPECT_EQ(send(request("PUT", kApi)).status, 501);
  client.send(request("GET", "/healthz", "Connection: close\r\n"));
  EXPECT_EQ(client.read().headers.at("connection"), "close");
  EXPECT_TRUE(client.closed(3'000));
}

// A byte now and then does not keep a connection: the whole request has one deadline.
TEST_F(Door, SlowClientsAreDropped) {
  start();
  RawClient silent(port_);
  RawClient slow(port_);
  slow.send("GET / HTTP/1.1\r\nHost: localhost\r\nX: ");
  const auto begin = std::chrono::steady_clock::now();
  bool open = true;
  while (open && std::chrono::steady_clock::now() - begin < std::chrono::seconds(40)) {
    open = slow.send("x") && !silent.closed(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_FALSE(open);
  EXPECT_TRUE(silent.closed(5'000));
  const Answer answer = slow.read();
  EXPECT_TRUE(answer.status == 408 || answer.status == 0) << answer.status;
  EXPECT_EQ(get("/healthz", "").status, 200);
}

TEST_F(Door, ManyIdleConnectionsDoNotKeepAnybodyOut) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 1'200) GTEST_SKIP() << "only " << limit.rlim_cur << " files may be open";
  start();
  submit();
  RawClient stream(port_);
  stream.send(request("GET", kApi + "/s/events", bearer(kOperator)));
  ASSERT_THAT(stream.read_until("event: status"), HasSubstr("event: status"));
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 1'000; ++i) {
    idle.push_back(std::make_unique<RawClient>(port_));
    idle.back()->send("GET /");
    if (i % 100 != 99) continue;
    EXPECT_EQ(get(kApi).status, 200) << "after " << i;
  }
  EXPECT_EQ(get("/healthz", "").status, 200);
  const auto gone = std::count_if(idle.begin(), idle.end(), [](auto& c) { return c->closed(0); });
  EXPECT_GE(gone, 1'000 - 256);
  // Who is being answered was not thrown out for them.
  EXPECT_EQ(post(kApi + "/s/pause").status, 200);
  EXPECT_THAT(stream.read_until("\"paused\""), HasSubstr("\"paused\""));
}

TEST_F(Door, StreamTellsEveryStepUntilTheEnd) {
  start();
  submit();
  RawClient stream(port_);
  stream.send(request("GET", kApi + "/s/events", log_in()));
  const Answer head = stream.read();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-type"), "text/event-stream");
  const auto one = worker(50);
  const std::string text = stream.read_until("event: end\n", 30'000);
  EXPECT_THAT(text, HasSubstr("event: status\ndata: {"));
  const std::string last = stream.read_until("\n\n");
  ASSERT_THAT(last, StartsWith("data: "));
  EXPECT_EQ(Json::parse(last.substr(6))["state"], "done");
  EXPECT_TRUE(stream.closed(3'000));
  EXPECT_EQ(get(kApi + "/nobody/events").status, 404);
}

TEST_F(Door, StreamsAreBoundedAndEndWithTheirSession) {
  start();
  submit();
  const std::string session = log_in();
  std::vector<std::unique_ptr<RawClient>> streams;
  for (int i = 0; i < 64; ++i) {
    streams.push_back(std::make_unique<RawClient>(port_));
    streams.back()->send(request("GET", kApi + "/s/events", i == 0 ? session : bearer(kOperator)));
    EXPECT_EQ(streams.back()->read().status, 200);
  }
  EXPECT_EQ(get(kApi + "/s/events").status, 503);
  EXPECT_EQ(post("/logout", "", session).status, 204);
  streams[0]->read_until("never", 15'000);
  EXPECT_TRUE(streams[0]->closed(1'000));
  streams.pop_back();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(get(kApi + "/s/events").status, 200);
}

TEST_F(Door, LostRedisIsToldToProbes) {
  start();
  EXPECT_EQ(get("/readyz", "").status, 200);
  redis_.signal(SIGKILL);
  redis_.wait();
  Answer ready;
  for (int i = 0; i < 200 && ready.status != 503; ++i) {
    ready = get("/readyz", "");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(get("/healthz", "").status, 200);
  EXPECT_EQ(get("/healthz", "").json(), (Json{{"live", true}, {"ready", false}}));
  redis_ = start_redis(dir_);
  for (int i = 0; i < 500 && ready.status != 200; ++i) {
    ready = get("/readyz", "");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(ready.status, 200);
}

TEST_F(Door, FlagsAreChecked) {
  const auto exit_code = [&](std::vector<std::string> flags) {
    Child child = start_coordinator(dir_, flags);
    const int code = child.wait_for(5'000) ? child.wait() : -1;
    return code;
  };
  const std::string token = dir_.path("token");
  EXPECT_EQ(exit_code({"--http", "127.0.0.1:0"}), 2);  // loopback, too, needs a token
  EXPECT_EQ(exit_code({"--http", "0.0.0.0:0"}), 2);
  EXPECT_EQ(exit_code({"--http", "nowhere", "--http-token-file", token}), 2);
  EXPECT_EQ(exit_code({"--http", "127.0.0.1:99999", "--http-token-file", token}), 2);
  EXPECT_EQ(exit_code({"--http", "127.0.0.1:0", "--http-token-file", dir_.path("none")}), 2);
  EXPECT_EQ(exit_code({"--http", "127.0.0.1:0", "--http-token-file", token,
                       "--http-viewer-token-file", token}),
            2);
  EXPECT_EQ(exit_code({"--http", "127.0.0.1:0", "--http-token", "given-by-flag"}),
            2);  // never by flag
  ASSERT_TRUE(make_secret_file(dir_.path("short"), "secret").ok());
  EXPECT_EQ(exit_code({"--http", "127.0.0.1:0", "--http-token-file", dir_.path("short")}), 2);
  ASSERT_TRUE(make_secret_file(dir_.path("open"), kOperator).ok());
  std::filesystem::permissions(dir_.path("open"), std::filesystem::perms(0644));
  EXPECT_EQ(exit_code({"--http", "127.0.0.1:0", "--http-token-file", dir_.path("open")}), 2);
  EXPECT_THAT(read_all(dir_.path("coordinator.log")), HasSubstr("chmod 600"));
}

// A coordinator that takes over may start before the old one has gone.
TEST_F(Door, WaitsForAnAddressThatIsStillTaken) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::thread release([fd] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ::close(fd);
  });
  start({}, fmt::format("127.0.0.1:{}", ntohs(address.sin_port)));
  release.join();
  EXPECT_EQ(get("/healthz", "").status, 200);
}

}  // namespace
}  // namespace bitalloc::testing
