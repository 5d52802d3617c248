#include "coordinator/http/routes.h"

#include <charconv>
#include <cmath>
#include <set>

#include "coordinator/http/page.h"

namespace bitalloc::http {
namespace {

using Kind = Route::Kind;

struct Row {
  const char* method;
  const char* path;  // "{id}" stands for one segment
  Route route;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"GET", "/healthz", {Kind::kAlive, "", ""}},
      {"GET", "/readyz", {Kind::kReady, "", ""}},
      {"POST", "/login", {Kind::kLogin, "", ""}},
      {"POST", "/logout", {Kind::kLogout, "", ""}},
      {"GET", "/session", {Kind::kSession, "", ""}},
      {"GET", "/api/v1/info", {Kind::kApi, "info", ""}},
      {"GET", "/api/v1/workers", {Kind::kApi, "workers", ""}},
      {"GET", "/api/v1/searches", {Kind::kApi, "list", ""}},
      {"GET", "/api/v1/searches/{id}", {Kind::kApi, "status", ""}},
      {"DELETE", "/api/v1/searches/{id}", {Kind::kApi, "delete", ""}},
      {"GET",
       "/api/v1/searches/{id}/assignment",
       {Kind::kApi, "assignment", "bits scores partial confidence smooth"}},
      {"GET", "/api/v1/searches/{id}/frontier", {Kind::kApi, "frontier", "partial"}},
      {"GET", "/api/v1/searches/{id}/scores", {Kind::kApi, "scores", ""}},
      {"GET", "/api/v1/searches/{id}/events", {Kind::kEvents, "watch", ""}},
      {"POST", "/api/v1/searches/{id}/pause", {Kind::kApi, "pause", ""}},
      {"POST", "/api/v1/searches/{id}/resume", {Kind::kApi, "resume", ""}},
      {"POST", "/api/v1/searches/{id}/cancel", {Kind::kApi, "cancel", ""}},
      {"POST", "/api/v1/searches/{id}/priority", {Kind::kApi, "reprioritize", ""}},
      {"POST", "/api/v1/searches/{id}/rebudget", {Kind::kApi, "rebudget", ""}},
  };
  return table;
}

bool matches(std::string_view pattern, const std::vector<std::string>& path) {
  for (const std::string& segment : path) {
    if (pattern.empty()) return false;
    pattern.remove_prefix(1);
    const std::string_view wanted = pattern.substr(0, pattern.find('/'));
    if (wanted != "{id}" && wanted != segment) return false;
    pattern.remove_prefix(wanted.size());
  }
  return pattern.empty();
}

Response not_allowed(const Request& request, const std::set<std::string>& methods) {
  std::string allow = "OPTIONS";
  for (const std::string& method : methods) allow += ", " + method;
  Response response;
  if (request.method == "OPTIONS") {
    response.status = 204;
  } else {
    response = problem(405, unsupported(fmt::format("{} is not possible here", request.method),
                                        "method", "possible are " + allow));
  }
  response.headers.emplace_back("Allow", allow);
  return response;
}

Result<Json> to_json(const std::string& name, const std::string& text) {
  if (name != "bits") {
    if (text == "true") return Json(true);
    if (text == "false") return Json(false);
    return invalid_argument(fmt::format("{}={} is neither true nor false", name, text), name);
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) {
    return invalid_argument(fmt::format("{}={} is not a number", name, text), name);
  }
  return Json(number);
}

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::string_view first = words.substr(0, words.find(' '));
    if (first == word) return true;
    words.remove_prefix(std::min(words.size(), first.size() + 1));
  }
  return false;
}

Result<Json> read_body(const Request& request) {
  if (request.body.empty()) return Json::object();
  BA_ASSIGN_OR_RETURN(Json body, parse_json(request.body, "body"));
  if (!body.is_object()) return invalid_argument("the body is not a JSON object", "body");
  return body;
}

}  // namespace

std::variant<Route, Response> find_route(const Request& request) {
  static const std::set<std::string> known = {"GET", "HEAD", "POST", "DELETE", "OPTIONS"};
  if (!known.contains(request.method)) {
    return problem(501, unsupported("there is no such method", "method"));
  }
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::set<std::string> methods;
  if (find_file(request.path) != nullptr) {
    if (method == "GET") return Route{Kind::kPage, "", ""};
    methods = {"GET", "HEAD"};
  }
  for (const Row& row : rows()) {
    if (!matches(row.path, request.path)) continue;
    if (method == row.method && !(request.method == "HEAD" && row.route.kind == Kind::kEvents)) {
      return row.route;
    }
    methods.insert(row.method);
    if (row.method == std::string_view("GET") && row.route.kind != Kind::kEvents) {
      methods.insert("HEAD");
    }
  }
  if (!methods.empty()) return not_allowed(request, methods);
  return problem(404, not_found("there is nothing at this path", "target",
                                "the API is below /api/v1/searches"));
}

Result<wire::Message> to_message(const Route& route, const Request& request) {
  wire::Message message;
  message.type = route.type;
  BA_ASSIGN_OR_RETURN(message.header, read_body(request));
  for (const auto& [name, text] : request.query) {
    if (!has_word(route.parameters, name)) {
      return invalid_argument(fmt::format("there is no parameter '{}' here", name), name,
                              route.parameters.empty() ? "" : "there are: " + route.parameters);
    }
    BA_ASSIGN_OR_RETURN(message.header[name == "bits" ? "effective_bits" : name],
                        to_json(name, text));
  }
  constexpr size_t kIdSegment = 3;  // api, v1, searches, {id}
  if (request.path.size() > kIdSegment) message.header["id"] = request.path[kIdSegment];
  return message;
}

}  // namespace bitalloc::http
