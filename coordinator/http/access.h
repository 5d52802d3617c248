// Who may do what over HTTP: tokens, sessions of browsers, failed attempts.
//
// A token is a secret of at least 32 characters. Only digests of tokens and session ids are kept,
// and digests are compared in constant time. The clock and the randomness come in as arguments.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "common/status.h"

namespace bitalloc::http {

using TimeMs = int64_t;  // of the caller's steady clock

enum class Role { kNone, kViewer, kOperator };  // nothing, everything that changes nothing, all

// 32…512 characters of RFC 6750's b68token. Errors: kInvalidArgument naming `source`.
Status check_token(const std::string& token, const std::string& source);

struct Tokens {
  std::string operator_token;  // empty: nobody is one
  std::string viewer_token;    // empty: nobody is one
};

// Sessions end 12 h after the login. At most 1,024: then the oldest ends.
inline constexpr TimeMs kSessionMs = 12 * 3'600'000;
inline constexpr size_t kMaxSessions = 1'024;
// An address with 10 failures within a minute has to wait until the minute is over. At most 4,096
// addresses are remembered: then the one with the oldest minute is forgotten.
inline constexpr int kMaxFailures = 10;
inline constexpr TimeMs kFailureWindowMs = 60'000;
inline constexpr size_t kMaxAddresses = 4'096;

class Access {
 public:
  using Random = std::function<std::string()>;  // 256 fresh bits, as 64 hex digits

  Access(const Tokens& tokens, Random random);

  Role role_of_token(std::string_view token) const;
  // kNone for a session that is unknown or over.
  Role role_of_session(std::string_view id, TimeMs now);

  std::string log_in(Role role, TimeMs now);  // the new session's id
  void log_out(std::string_view id);

  // `address`: an IPv4 address; of an IPv6 address its /64, which one person has whole.
  void note_failure(const std::string& address, TimeMs now);
  // Milliseconds until `address` may try again; 0: now.
  TimeMs must_wait_ms(const std::string& address, TimeMs now) const;

  size_t sessions() const { return sessions_.size(); }
  size_t addresses() const { return failures_.size(); }

 private:
  struct Session {
    Role role = Role::kNone;
    TimeMs ends = 0;
  };
  struct Failures {
    TimeMs since = 0;
    int count = 0;
  };

  Random random_;
  std::string operator_digest_;  // empty: no such token
  std::string viewer_digest_;
  std::map<std::string, Session> sessions_;  // by digest of the id
  std::map<std::string, Failures> failures_;
};

}  // namespace bitalloc::http
