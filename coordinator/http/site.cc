#include "coordinator/http/site.h"

#include <boost/asio/ip/address.hpp>
#include <cctype>

#include "common/json_text.h"
#include "coordinator/http/page.h"

namespace bitalloc::http {
namespace {

using Kind = Route::Kind;
constexpr size_t kSessionIdBytes = 64;

// Without the port: "localhost", "[::1]".
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool is_loopback_name(std::string_view name) {
  if (name == "localhost" || name == "[::1]") return true;
  if (!name.starts_with("127.")) return false;
  return name.find_first_not_of("0123456789.") == std::string_view::npos;
}

std::string_view session_of(std::string_view cookies) {
  const std::string wanted = std::string(kSessionCookie) + "=";
  while (!cookies.empty()) {
    std::string_view pair = cookies.substr(0, cookies.find(';'));
    cookies.remove_prefix(std::min(cookies.size(), pair.size() + 1));
    while (pair.starts_with(' ')) pair.remove_prefix(1);
    if (pair.starts_with(wanted)) return pair.substr(wanted.size());
  }
  return {};
}

// The token of "Bearer TOKEN"; nothing for another scheme.
std::string_view bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if (i >= authorization.size()) return {};
    const auto c = static_cast<unsigned char>(authorization[i]);
    if (std::tolower(c) != kScheme[i]) return {};
  }
  return authorization.substr(kScheme.size());
}

bool is_json(const Request& request) {
  const std::string_view type = request.header("content-type");
  return type == "application/json" || type.starts_with("application/json;");
}

Response forbidden(const std::string& message, const std::string& hint) {
  return problem(403, invalid_argument(message, "", hint));
}

Response not_json() {
  return problem(415, invalid_argument("the body must be application/json", "content-type"));
}

Response page(const Request& request) {
  const PageFile* file = find_file(request.path);
  return {200, std::string(file->content_type), std::string(file->content), {}};
}

const char* role_name(Role role) { return role == Role::kOperator ? "operator" : "viewer"; }

}  // namespace

std::string address_key(const std::string& address) {
  boost::system::error_code error;
  const auto parsed = boost::asio::ip::make_address(address, error);
  if (error || parsed.is_v4()) return address;
  const auto v6 = parsed.to_v6();
  if (v6.is_v4_mapped()) {
    return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, v6).to_string();
  }
  auto bytes = v6.to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return boost::asio::ip::address_v6(bytes).to_string() + "/64";
}

Site::Site(SiteOptions options, const Tokens& tokens, Access::Random random)
    : options_(std::move(options)), access_(tokens, std::move(random)) {}

bool Site::names_us(std::string_view host) const {
  const std::string_view name = host_name(host);
  if (options_.loopback && is_loopback_name(name)) return true;
  return std::any_of(options_.hosts.begin(), options_.hosts.end(),
                     [&](const std::string& ours) { return host == ours || name == ours; });
}

bool Site::good_host(const Request& request) const {
  if (!options_.loopback && options_.hosts.empty()) return true;
  return names_us(request.header("host"));
}

// What the browser says of who sent the request: another site than ours.
bool Site::cross_site(const Request& request) const {
  const std::string_view fetch_site = request.header("sec-fetch-site");
  if (!fetch_site.empty() && fetch_site != "same-origin") return true;
  std::string_view origin = request.header("origin");
  if (origin.empty()) return false;
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return true;  // "null"
  origin.remove_prefix(scheme + 3);
  const bool configured =
      std::find(options_.hosts.begin(), options_.hosts.end(), origin) != options_.hosts.end();
  return origin != request.header("host") && !configured;
}

Site::Caller Site::identify(const Request& request, TimeMs now) {
  Caller caller;
  const std::string_view authorization = request.header("authorization");
  if (!authorization.empty()) {  // then the cookie does not count
    caller.tried_token = true;
    caller.role = access_.role_of_token(bearer_token(authorization));
    return caller;
  }
  const std::string_view session = session_of(request.header("cookie"));
  if (session.size() != kSessionIdBytes) return caller;
  caller.session = std::string(session);
  caller.role = access_.role_of_session(session, now);
  return caller;
}

Response Site::unknown_caller(const Caller& caller, const std::string& address, TimeMs now) {
  if (caller.tried_token) {
    if (const TimeMs wait = access_.must_wait_ms(address, now); wait > 0) {
      Response response = problem(429, unavailable("too many wrong tokens from this address"));
      response.headers.emplace_back("Retry-After", std::to_string(wait / 1'000 + 1));
      return response;
    }
    access_.note_failure(address, now);
  }
  const char* said = caller.tried_token       ? "this token is not known here"
                     : caller.session.empty() ? "a token is needed"
                                              : "the session is over";
  Response response =
      problem(401, invalid_argument(said, "authorization",
                                    "send 'Authorization: Bearer TOKEN', or log in on the page"));
  response.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"bitalloc\"");
  return response;
}

// A browser sends its cookie along whoever made it send the request: the page, or another site.
std::optional<Response> Site::refuse_change(const Request& request, const Caller& caller) const {
  const bool says_where_from = !request.header("sec-fetch-site").empty() ||
                               !request.header("origin").empty() ||
                               !request.header("x-bitalloc").empty();
  if (!caller.session.empty() && (cross_site(request) || !says_where_from)) {
    return forbidden("a change with a session must come from the page itself",
                     "use a bearer token, or send the header X-Bitalloc: 1 from the same origin");
  }
  if (options_.read_only) {
    return forbidden("this door is read-only",
                     "use the command line, or a door without --http-read-only");
  }
  if (caller.role != Role::kOperator) {
    return forbidden("this token may look, not change", "use the operator's token");
  }
  if (!request.body.empty() && !is_json(request)) return not_json();
  return std::nullopt;
}

std::string Site::cookie(const Request& request, const std::string& value, int64_t seconds) const {
  const bool secure = options_.secure_cookie || request.header("x-forwarded-proto") == "https";
  return fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{}", kSessionCookie,
                     value, seconds, secure ? "; Secure" : "");
}

Response Site::log_in(const Request& request, const std::string& address, TimeMs now) {
  if (cross_site(request)) return forbidden("log in from the page itself", "");
  Caller caller;
  caller.tried_token = true;
  if (access_.must_wait_ms(address, now) > 0) return unknown_caller(caller, address, now);
  if (!is_json(request)) return not_json();
  const Result<Json> body = parse_json(request.body, "body");
  if (!body.ok()) return problem(body.error());
  const auto token = json_field<std::string>(*body, "token", "body");
  if (!token.ok()) return problem(token.error());
  const Role role = access_.role_of_token(*token);
  if (role == Role::kNone) return unknown_caller(caller, address, now);
  Response response =
      json_response(200, {{"role", role_name(role)}, {"read_only", options_.read_only}});
  response.headers.emplace_back("Set-Cookie",
                                cookie(request, access_.log_in(role, now), kSessionMs / 1'000));
  return response;
}

Response Site::log_out(const Request& request) {
  if (cross_site(request)) return forbidden("log out from the page itself", "");
  access_.log_out(session_of(request.header("cookie")));
  Response response;
  response.status = 204;
  response.headers.emplace_back("Set-Cookie", cookie(request, "", 0));
  return response;
}

std::variant<Response, Ask> Site::decide(const Request& request, const std::string& address,
                                         bool ready, TimeMs now) {
  const auto found = find_route(request);
  const Route* route = std::get_if<Route>(&found);
  if (route != nullptr && (route->kind == Kind::kAlive || route->kind == Kind::kReady)) {
    return json_response(route->kind == Kind::kReady && !ready ? 503 : 200,
                         {{"live", true}, {"ready", ready}});
  }
  if (!good_host(request)) {
    return problem(
        421, invalid_argument("this host name is not ours", "host", "name it with --http-host"));
  }
  if (route == nullptr) return std::get<Response>(found);
  if (!request.header("expect").empty()) {
    return problem(417, unsupported("no expectation is met here", "expect"));
  }
  if (route->kind == Kind::kPage) return page(request);
  if (route->kind == Kind::kLogin) return log_in(request, address, now);
  if (route->kind == Kind::kLogout) return log_out(request);
  const Caller caller = identify(request, now);
  if (caller.role == Role::kNone) return unknown_caller(caller, address, now);
  if (route->kind == Kind::kSession) {
    return json_response(200,
                         {{"role", role_name(caller.role)}, {"read_only", options_.read_only}});
  }
  if (request.is_change()) {
    if (auto refused = refuse_change(request, caller)) return *std::move(refused);
  }
  Result<wire::Message> message = to_message(*route, request);
  if (!message.ok()) return problem(message.error());
  return Ask{std::move(message).value(), route->kind == Kind::kEvents, caller.session};
}

Response Site::answer(const wire::Message& reply) {
  if (reply.type == "error") return problem(wire::error_of(reply));
  return json_response(200, reply.header);
}

std::string Site::event(const wire::Message& reply) {
  if (reply.type == "event") {
    return fmt::format("event: status\ndata: {}\n\n", json_text(reply.header.at("status")));
  }
  const char* name = reply.type == "error" ? "failure" : "end";
  return fmt::format("event: {}\ndata: {}\n\n", name, json_text(reply.header));
}

bool Site::still_allowed(const Ask& ask, TimeMs now) {
  return ask.session.empty() || access_.role_of_session(ask.session, now) != Role::kNone;
}

}  // namespace bitalloc::http
