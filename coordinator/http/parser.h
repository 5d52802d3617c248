// From bytes to a Request: Beast's parser with our limits. Any thread.
#pragma once

#include <utility>  // before Asio's coroutines

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "coordinator/http/request.h"

namespace bitalloc::http {

inline constexpr uint32_t kMaxHeaderBytes = 16 * 1'024;  // request line and headers
inline constexpr uint64_t kMaxBodyBytes = 64 * 1'024;

using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

void set_limits(Parser& parser);

// Errors: kInvalidArgument naming what is malformed: a target (see read_target), a header of
// kKnownHeaders that is there twice, HTTP/1.1 without Host, an HTTP version that is not 1.0 or 1.1.
Result<Request> read_request(const Parser::value_type& message);

// The answer to bytes that the parser gave up on.
Response refusal_of(const boost::system::error_code& code);

}  // namespace bitalloc::http
