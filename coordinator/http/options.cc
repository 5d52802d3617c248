#include "coordinator/http/options.h"

#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <cstdlib>

#include "common/secret_file.h"

namespace bitalloc::http {
namespace {

Error bad_address(const std::string& address) {
  return invalid_argument(fmt::format("--http '{}' is not HOST:PORT", address), "--http",
                          "give an address of this machine: 127.0.0.1:7680, [::1]:7680, "
                          "0.0.0.0:7680; port 0 takes a free one");
}

Status read_address(const std::string& text, Settings& settings) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return bad_address(text);
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  const char* end = text.data() + text.size();
  const auto [stop, wrong] = std::from_chars(text.data() + colon + 1, end, settings.port);
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  if (wrong != std::errc() || stop != end || error) return bad_address(text);
  settings.address = address.to_string();
  settings.site.loopback = address.is_loopback();
  return {};
}

Result<std::string> read_token(const std::string& file, const char* variable) {
  const char* value = std::getenv(variable);
  const bool from_file = !file.empty();
  std::string token;
  if (from_file) {
    BA_ASSIGN_OR_RETURN(token, read_secret_file(file));
  } else if (value != nullptr) {
    token = value;
  }
  if (token.empty() && !from_file) return token;
  BA_RETURN_IF_ERROR(check_token(token, from_file ? file : variable));
  return token;
}

}  // namespace

Result<Settings> read_settings(const Options& options) {
  Settings settings;
  BA_RETURN_IF_ERROR(read_address(options.address, settings));
  settings.site.read_only = options.read_only;
  settings.site.secure_cookie = options.secure_cookie;
  settings.site.hosts = options.hosts;
  BA_ASSIGN_OR_RETURN(settings.tokens.operator_token,
                      read_token(options.token_file, "BITALLOC_HTTP_TOKEN"));
  BA_ASSIGN_OR_RETURN(settings.tokens.viewer_token,
                      read_token(options.viewer_token_file, "BITALLOC_HTTP_VIEWER_TOKEN"));
  const Tokens& tokens = settings.tokens;
  if (tokens.operator_token.empty() && tokens.viewer_token.empty()) {
    return invalid_argument("--http needs a token, at the loopback, too", "--http-token-file",
                            "make one: (umask 077; openssl rand -hex 32 > FILE); "
                            "then --http-token-file FILE, or set BITALLOC_HTTP_TOKEN");
  }
  if (tokens.operator_token == tokens.viewer_token) {
    return invalid_argument("the viewer's token is the operator's", "--http-viewer-token-file",
                            "give viewers a token of their own");
  }
  return settings;
}

}  // namespace bitalloc::http
