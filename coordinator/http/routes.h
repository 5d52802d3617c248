// Which request means what: the one table of the HTTP front. Pure; any thread.
#pragma once

#include <string>
#include <variant>

#include "common/wire.h"
#include "coordinator/http/request.h"

namespace bitalloc::http {

struct Route {
  enum class Kind {
    kAlive,    // GET  /healthz          {"live", "ready"}, 200 as long as the process answers
    kReady,    // GET  /readyz           the same, 503 while Redis is lost
    kLogin,    // POST /login            {"token"} → a session cookie
    kLogout,   // POST /logout           the session ends
    kSession,  // GET  /session          {"role", "read_only"} of who asks
    kPage,     // GET  / and the files of the page, which hold no data
    kApi,      // /api/v1/…              a message of wire.h
    kEvents,   // the same, answered as a stream of events
  };
  Kind kind = Kind::kApi;
  std::string type;        // of the message (kApi, kEvents)
  std::string parameters;  // of the query, separated by blanks: others are refused
};

// The route of `request`, or the refusal: 404, 405 with `Allow`, 501 for a method that nothing here
// has, 204 with `Allow` for OPTIONS. HEAD finds the route of GET.
std::variant<Route, Response> find_route(const Request& request);

// The message that `request` asks for: {"id"} of the path, the parameters of the query, the members
// of a JSON body. Errors: kInvalidArgument naming the parameter or member.
Result<wire::Message> to_message(const Route& route, const Request& request);

}  // namespace bitalloc::http
