#include "coordinator/http/request.h"

#include <fmt/chrono.h>

#include <ctime>

#include "common/json_text.h"

namespace bitalloc::http {
namespace {

constexpr size_t kMaxSegments = 16;
constexpr size_t kMaxParameters = 16;

// Scripts, styles and data come from here alone; nothing may frame the page or take its forms.
constexpr const char* kFixedHeaders =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n";

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Internal Server Error";
  }
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kMismatch:
      return 409;
    case ErrorCode::kCancelled:
      return 409;
    case ErrorCode::kInfeasible:
      return 422;
    case ErrorCode::kUnsupported:
      return 422;
    case ErrorCode::kResourceExhausted:
      return 413;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::string> decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return invalid_argument("a %-escape is malformed", "target");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      return invalid_argument("the target has a control character", "target");
    }
    out += c;
  }
  return out;
}

Status read_path(std::string_view path, Request& request) {
  while (!path.empty()) {
    path.remove_prefix(1);  // the slash
    const std::string_view raw = path.substr(0, path.find('/'));
    path.remove_prefix(raw.size());
    if (raw.empty() && path.empty()) break;  // a slash at the end says nothing
    BA_ASSIGN_OR_RETURN(std::string segment, decode(raw));
    if (segment.empty() || segment == "." || segment == ".." ||
        segment.find_first_of("/\\") != std::string::npos) {
      return invalid_argument("the path has an empty, dot or slash segment", "target");
    }
    if (request.path.size() == kMaxSegments) return invalid_argument("the path is too deep");
    request.path.push_back(std::move(segment));
  }
  return {};
}

Status read_query(std::string_view query, Request& request) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    BA_ASSIGN_OR_RETURN(std::string name, decode(pair.substr(0, equals)));
    std::string value;
    if (equals != std::string_view::npos) {
      BA_ASSIGN_OR_RETURN(value, decode(pair.substr(equals + 1)));
    }
    if (request.query.size() == kMaxParameters) {
      return invalid_argument("the query has too many parameters", "target");
    }
    if (!request.query.emplace(name, std::move(value)).second) {
      return invalid_argument(fmt::format("the parameter '{}' is there twice", name), name);
    }
  }
  return {};
}

}  // namespace

std::string_view Request::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

Status read_target(std::string_view target, Request& request) {
  if (!target.starts_with('/')) {
    return invalid_argument("the request target is not a path", "target");
  }
  const size_t mark = target.find('?');
  BA_RETURN_IF_ERROR(read_path(target.substr(0, mark), request));
  if (mark == std::string_view::npos) return {};
  return read_query(target.substr(mark + 1), request);
}

Response json_response(int status, const Json& body) {
  return {status, "application/json", json_text(body) + "\n", {}};
}

Response problem(int status, const Error& error) {
  const Json body = {{"type", "about:blank"},
                     {"title", reason_of(status)},
                     {"status", status},
                     {"detail", error.message},
                     {"error", error_to_json(error)}};
  return {status, "application/problem+json", json_text(body) + "\n", {}};
}

Response problem(const Error& error) { return problem(status_of(error.code), error); }

std::string to_bytes(const Response& response, bool keep_alive, bool head_only) {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S GMT}\r\n{}", response.status,
                  reason_of(response.status), fmt::gmtime(std::time(nullptr)), kFixedHeaders);
  for (const auto& [name, value] : response.headers) out += fmt::format("{}: {}\r\n", name, value);
  const bool stream = response.content_type == "text/event-stream";
  if (response.status != 204) {
    out += fmt::format("Content-Type: {}\r\n", response.content_type);
    if (!stream) out += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  out += keep_alive && !stream ? "\r\n" : "Connection: close\r\n\r\n";
  if (!head_only) out += response.body;
  return out;
}

}  // namespace bitalloc::http
