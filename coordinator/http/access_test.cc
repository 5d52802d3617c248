// Bounds and times of tokens, sessions and failures, and what the page's guard sees of addresses.
#include "coordinator/http/access.h"

#include <gtest/gtest.h>

#include <set>

#include "common/secret_file.h"
#include "coordinator/http/request.h"
#include "coordinator/http/site.h"

namespace bitalloc::http {
namespace {

const std::string kOperator(32, 'o');
const std::string kViewer(32, 'v');

// Sessions "1", "2", … padded, so that a test can tell them apart.
Access counted() {
  return Access({kOperator, kViewer}, [n = 0]() mutable { return fmt::format("{:064}", ++n); });
}

TEST(Access, TokensHaveRoles) {
  const Access access = counted();
  EXPECT_EQ(access.role_of_token(kOperator), Role::kOperator);
  EXPECT_EQ(access.role_of_token(kViewer), Role::kViewer);
  for (const std::string& wrong :
       {std::string(), kOperator + "o", kOperator.substr(1), kViewer + kOperator}) {
    EXPECT_EQ(access.role_of_token(wrong), Role::kNone) << wrong;
  }
}

// A token that is not configured is not the empty one.
TEST(Access, MissingTokensOpenNothing) {
  const Access nobody({"", ""}, random_secret);
  EXPECT_EQ(nobody.role_of_token(""), Role::kNone);
  const Access viewers({"", kViewer}, random_secret);
  EXPECT_EQ(viewers.role_of_token(""), Role::kNone);
  EXPECT_EQ(viewers.role_of_token(kViewer), Role::kViewer);
}

TEST(Access, TokensAreLongAndPlain) {
  EXPECT_TRUE(check_token(std::string(32, 'a'), "f").ok());
  EXPECT_TRUE(check_token(random_secret(), "f").ok());
  EXPECT_EQ(check_token(std::string(31, 'a'), "f").error().field, "f");
  EXPECT_FALSE(check_token(std::string(513, 'a'), "f").ok());
  EXPECT_FALSE(check_token(std::string(32, 'a') + " b", "f").ok());
  EXPECT_FALSE(check_token(std::string(32, 'a') + "\n", "f").ok());
}

TEST(Access, SessionsEnd) {
  Access access = counted();
  const std::string id = access.log_in(Role::kViewer, 1'000);
  EXPECT_EQ(access.role_of_session(id, 1'000), Role::kViewer);
  EXPECT_EQ(access.role_of_session(id, 1'000 + 12 * 3'600'000 - 1), Role::kViewer);
  EXPECT_EQ(access.role_of_session(id, 1'000 + 12 * 3'600'000), Role::kNone);
  const std::string other = access.log_in(Role::kOperator, 2'000);
  access.log_out(other);
  EXPECT_EQ(access.role_of_session(other, 2'000), Role::kNone);
  EXPECT_EQ(access.role_of_session("", 2'000), Role::kNone);
}

TEST(Access, TheOldestOfTooManySessionsEnds) {
  Access access = counted();
  const std::string first = access.log_in(Role::kViewer, 0);
  const std::string second = access.log_in(Role::kViewer, 1);
  for (TimeMs i = 2; i < 1'025; ++i) access.log_in(Role::kViewer, i);
  EXPECT_EQ(access.sessions(), 1'024u);
  EXPECT_EQ(access.role_of_session(first, 2'000), Role::kNone);
  EXPECT_EQ(access.role_of_session(second, 2'000), Role::kViewer);
}

TEST(Access, TenFailuresAMinute) {
  Access access = counted();
  for (int i = 0; i < 9; ++i) access.note_failure("a", i);
  EXPECT_EQ(access.must_wait_ms("a", 9), 0);
  access.note_failure("a", 9);
  EXPECT_EQ(access.must_wait_ms("a", 10), 60'000 - 10);
  EXPECT_EQ(access.must_wait_ms("b", 10), 0);
  EXPECT_EQ(access.must_wait_ms("a", 60'000), 0);
  access.note_failure("a", 60'000);  // a new minute, a new count
  EXPECT_EQ(access.must_wait_ms("a", 60'001), 0);
}

TEST(Access, RemembersSoManyAddresses) {
  Access access = counted();
  for (int i = 0; i < 10; ++i) access.note_failure("victim", 100'000);
  for (int i = 0; i < 5'000; ++i) access.note_failure(fmt::format("{}", i), i);
  EXPECT_EQ(access.addresses(), 4'096u);
  EXPECT_GT(access.must_wait_ms("victim", 100'001), 0) << "older minutes go first";
}

TEST(Access, RandomIsNotRepeated) {
  std::set<std::string> seen;
  for (int i = 0; i < 1'000; ++i) seen.insert(random_secret());
  EXPECT_EQ(seen.size(), 1'000u);
  EXPECT_EQ(seen.begin()->size(), 64u);
  EXPECT_EQ(seen.begin()->find_first_not_of("0123456789abcdef"), std::string::npos);
}

// Who has an IPv6 network has 2^64 addresses: they count as one.
TEST(Addresses, OfOneNetworkAreOne) {
  EXPECT_EQ(address_key("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(address_key("::ffff:192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(address_key("2001:db8:1:2::1"), address_key("2001:db8:1:2:ffff::9"));
  EXPECT_NE(address_key("2001:db8:1:2::1"), address_key("2001:db8:1:3::1"));
}

TEST(Target, IsDecodedOnce) {
  Request request;
  ASSERT_TRUE(read_target("/a%2Db/%2525?x=%26%3D&y", request).ok());
  EXPECT_EQ(request.path, (std::vector<std::string>{"a-b", "%25"}));
  EXPECT_EQ(request.query.at("x"), "&=");
  EXPECT_EQ(request.query.at("y"), "");
  for (const char* bad :
       {"", "a", "*", "//", "/./a", "/a/../b", "/a%2fb", "/a\\b", "/a%5cb", "/%2e%2E/", "/%", "/%4",
        "/%g0", "/a%00", "/a%0d%0aSet-Cookie:x", "/?a=1&a=2"}) {
    Request refused;
    EXPECT_FALSE(read_target(bad, refused).ok()) << bad;
  }
}

}  // namespace
}  // namespace bitalloc::http
