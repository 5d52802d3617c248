// The flags of the HTTP front, and what they come to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "coordinator/http/access.h"
#include "coordinator/http/site.h"

namespace bitalloc::http {

struct Options {
  std::string address;            // "HOST:PORT"; empty: no HTTP
  std::string token_file;         // else the variable BITALLOC_HTTP_TOKEN
  std::string viewer_token_file;  // else BITALLOC_HTTP_VIEWER_TOKEN; both empty: no viewers
  std::vector<std::string> hosts;
  bool read_only = false;
  bool secure_cookie = false;
};

struct Settings {
  std::string address;  // numeric
  uint16_t port = 0;    // 0: a free one
  Tokens tokens;
  SiteOptions site;
};

// Reads the token files; a token is needed at the loopback, too: every user of the machine and
// every page that its browsers show can reach that. Errors: kInvalidArgument naming the flag, file
// or variable.
Result<Settings> read_settings(const Options& options);

}  // namespace bitalloc::http
