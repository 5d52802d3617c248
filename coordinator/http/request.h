// An HTTP request and its answer as plain values: no socket, no Beast. Pure; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace bitalloc::http {

struct Request {
  std::string method;                          // "GET"; as sent
  std::vector<std::string> path;               // decoded segments; "/" has none
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case; those of kKnownHeaders only
  std::string body;

  std::string_view header(const std::string& name) const;  // empty when it is not there
  bool is_change() const { return method != "GET" && method != "HEAD" && method != "OPTIONS"; }
};

// The headers that anything here depends on. One of them sent twice makes a request malformed:
// two readers could believe different ones.
inline constexpr std::string_view kKnownHeaders[] = {
    "host",   "origin",       "sec-fetch-site",    "authorization",
    "cookie", "content-type", "x-forwarded-proto", "x-bitalloc",
    "expect"};

// Splits and decodes a request target ("/a/b?c=d") into `request`. Errors: kInvalidArgument for
// anything but an absolute path, a bad %-escape, a control character, a slash or dot segment that
// was hidden by an escape, a parameter that is there twice.
Status read_target(std::string_view target, Request& request);

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // beside the ones that all have
};

Response json_response(int status, const Json& body);
// application/problem+json (RFC 9457) whose member "error" is the error object of `--json`.
Response problem(int status, const Error& error);
// With the status that `error.code` stands for.
Response problem(const Error& error);

// The bytes on the wire: status line, headers (those of `response`, and the ones that every answer
// has: content security policy, no sniffing, no referrer, no caching, no frame, no foreign reader)
// and, unless `head_only`, the body. A response without content type is a stream: it has no length.
std::string to_bytes(const Response& response, bool keep_alive, bool head_only);

}  // namespace bitalloc::http
