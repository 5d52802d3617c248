// What every request gets: who may ask, the page, the API. Decides and does not wait: questions to
// the coordinator come out as an Ask, whose answer the connection brings.
//
// Order of refusals: unknown host (421), method and path (501, 404, 405), Expect (417), who asks
// (401, 429), may they (403), what is asked (400, 415). The host is checked when the front listens
// at the loopback (against DNS rebinding) or when names are configured.
//
// Thread rule: one thread.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "common/wire.h"
#include "coordinator/http/access.h"
#include "coordinator/http/request.h"
#include "coordinator/http/routes.h"

namespace bitalloc::http {

inline constexpr const char* kSessionCookie = "bitalloc_session";

struct SiteOptions {
  bool read_only = false;      // nothing changes through this door, whoever asks
  bool secure_cookie = false;  // cookies are `Secure` though no proxy says X-Forwarded-Proto: https
  bool loopback = true;        // names of the loopback are good hosts
  std::vector<std::string> hosts;  // further ones; empty and not loopback: any host is
};

// To be put to the coordinator for this caller.
struct Ask {
  wire::Message message;
  bool stream = false;  // answered as events until the search ends
  std::string session;  // the id of a browser's session; empty for a bearer token
};

class Site {
 public:
  Site(SiteOptions options, const Tokens& tokens, Access::Random random);

  // `address`: of the peer, as Access counts them. `ready`: the coordinator accepts changes.
  std::variant<Response, Ask> decide(const Request& request, const std::string& address, bool ready,
                                     TimeMs now);
  // The last reply to an Ask.
  static Response answer(const wire::Message& reply);
  // A reply to a watch as an event: `status` while it goes on, then `end` or `failure`.
  static std::string event(const wire::Message& reply);
  // The session (if any) that opened a stream still holds.
  bool still_allowed(const Ask& ask, TimeMs now);

 private:
  struct Caller {
    Role role = Role::kNone;
    std::string session;
    bool tried_token = false;
  };

  bool good_host(const Request& request) const;
  bool names_us(std::string_view host) const;
  bool cross_site(const Request& request) const;
  Caller identify(const Request& request, TimeMs now);
  Response log_in(const Request& request, const std::string& address, TimeMs now);
  Response log_out(const Request& request);
  Response unknown_caller(const Caller& caller, const std::string& address, TimeMs now);
  std::optional<Response> refuse_change(const Request& request, const Caller& caller) const;
  std::string cookie(const Request& request, const std::string& value, int64_t seconds) const;

  const SiteOptions options_;
  Access access_;
};

// "192.0.2.7", or the /64 of an IPv6 address; of an IPv4 address in IPv6 clothes the IPv4 address.
std::string address_key(const std::string& address);

}  // namespace bitalloc::http
