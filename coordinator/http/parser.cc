#include "coordinator/http/parser.h"

#include <boost/beast/http/error.hpp>

namespace bitalloc::http {
namespace {

namespace beast_http = boost::beast::http;

Status read_headers(const Parser::value_type& message, Request& request) {
  for (const std::string_view name : kKnownHeaders) {
    const auto [begin, end] =
        message.equal_range(boost::beast::string_view(name.data(), name.size()));
    if (begin == end) continue;
    if (std::next(begin) != end) {
      return invalid_argument(fmt::format("the header {} is there twice", name), std::string(name));
    }
    const auto value = begin->value();
    request.headers.emplace(name, std::string(value.data(), value.size()));
  }
  return {};
}

}  // namespace

void set_limits(Parser& parser) {
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(kMaxBodyBytes);
}

Result<Request> read_request(const Parser::value_type& message) {
  Request request;
  if (message.version() != 10 && message.version() != 11) {
    return unsupported("only HTTP/1.0 and HTTP/1.1 are spoken here", "version");
  }
  const auto method = message.method_string();
  request.method.assign(method.data(), method.size());
  const auto target = message.target();
  BA_RETURN_IF_ERROR(read_target({target.data(), target.size()}, request));
  BA_RETURN_IF_ERROR(read_headers(message, request));
  if (message.version() == 11 && !request.headers.contains("host")) {
    return invalid_argument("the header host is missing", "host");
  }
  request.body = message.body();
  return request;
}

Response refusal_of(const boost::system::error_code& code) {
  using beast_http::error;
  if (code == error::header_limit) {
    return problem(431,
                   resource_exhausted(fmt::format("more than {} bytes of headers", kMaxHeaderBytes),
                                      "header"));
  }
  if (code == error::body_limit) {
    return problem(413, resource_exhausted(
                            fmt::format("a body of more than {} bytes", kMaxBodyBytes), "body"));
  }
  return problem(400, invalid_argument("this is not an HTTP request: " + code.message()));
}

}  // namespace bitalloc::http
