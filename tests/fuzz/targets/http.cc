// Bytes of an HTTP connection up to the decision what to do, for three doors. Whatever is sent:
// nothing is asked of the coordinator without a token, nothing is changed without the operator's,
// and no byte of the request becomes a header of the answer.
#include <algorithm>
#include <boost/asio/buffer.hpp>

#include "coordinator/http/parser.h"
#include "coordinator/http/site.h"
#include "tests/fuzz/target.h"

namespace bitalloc::fuzz {
namespace {

using namespace bitalloc::http;

const std::string kOperator(32, 'o');
const std::string kViewer(32, 'v');
const std::string kSession(64, '5');  // what the logins of this target get

std::optional<Request> parse(std::string_view input) {
  Parser parser;
  set_limits(parser);
  parser.eager(true);
  boost::system::error_code error;
  parser.put(boost::asio::buffer(input.data(), input.size()), error);
  if (!error && !parser.is_done()) return std::nullopt;  // a connection would wait for the rest
  if (error) {
    to_bytes(refusal_of(error), false, false);
    return std::nullopt;
  }
  Result<Request> request = read_request(parser.get());
  if (!request.ok()) {
    to_bytes(problem(400, request.error()), false, false);
    return std::nullopt;
  }
  return std::move(request).value();
}

void check_head(const Response& response) {
  Response plain = response;
  plain.body.clear();
  const std::string bytes = to_bytes(plain, true, false);
  BA_CHECK(bytes.find("\r\n\r\n") == bytes.size() - 4, "headers end before they end");
  const auto lines = std::count(bytes.begin(), bytes.end(), '\n');
  const auto length = response.status == 204 ? 0 : 2;  // Content-Type, Content-Length
  BA_CHECK(lines == 1 + 1 + 7 + static_cast<long>(response.headers.size()) + length + 1,
           "another number of header lines: " + bytes);
}

void check_ask(const Request& request, const Ask& ask, bool read_only) {
  const std::string_view authorization = request.header("authorization");
  const bool by_operator = authorization.ends_with(" " + kOperator);
  const bool by_viewer = authorization.ends_with(" " + kViewer);
  const bool by_session = authorization.empty() && ask.session == kSession;
  BA_CHECK(by_operator || by_viewer || by_session, "asked without a token");
  static const std::string kReads[] = {"info",       "list",     "status", "workers",
                                       "assignment", "frontier", "scores", "watch"};
  const bool reads =
      std::find(std::begin(kReads), std::end(kReads), ask.message.type) != std::end(kReads);
  BA_CHECK(reads || ((by_operator || by_session) && !read_only), "changed without the right to");
  BA_CHECK(reads == !request.is_change(), "a GET changes, or a POST does not");
}

}  // namespace

bool accepts(std::string_view input) {
  const std::optional<Request> request = parse(input);
  if (!request.has_value()) return false;
  bool asked = false;
  for (const SiteOptions& options : {SiteOptions{}, SiteOptions{true, true, true, {}},
                                     SiteOptions{false, false, false, {"bitalloc.example"}}}) {
    Site site(options, {kOperator, kViewer}, [] { return kSession; });
    Request login;
    login.method = "POST";
    login.path = {"login"};
    login.headers["host"] = options.loopback ? "localhost" : "bitalloc.example";
    login.headers["content-type"] = "application/json";
    login.body = "{\"token\": \"" + kOperator + "\"}";
    site.decide(login, "a", true, 0);
    const auto decision = site.decide(*request, "a", true, 1);
    if (const auto* response = std::get_if<Response>(&decision)) check_head(*response);
    if (const auto* ask = std::get_if<Ask>(&decision)) {
      check_ask(*request, *ask, options.read_only);
      asked = true;
    }
  }
  return asked;
}

}  // namespace bitalloc::fuzz
