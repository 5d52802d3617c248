// An HTTP client for tests, on a plain socket: it sends the bytes that it is given, and reads
// answers without any code of the server.
#pragma once

#include <map>
#include <string>

#include "common/json.h"

namespace bitalloc::testing {

struct Answer {
  int status = 0;  // 0: the connection ended before an answer
  std::string head;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  Json json() const { return Json::parse(body, nullptr, /*allow_exceptions=*/false); }
};

class RawClient {
 public:
  explicit RawClient(int port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send(const std::string& bytes);
  // The next answer; waits at most `timeout_ms`. `head_only`: it has no body (HEAD).
  Answer read(int timeout_ms = 10'000, bool head_only = false);
  // Reads until `text` has come; all that was read. Shorter when the connection ends or time does.
  std::string read_until(const std::string& text, int timeout_ms = 10'000);
  // The server has closed (or closes within `timeout_ms`) without another byte.
  bool closed(int timeout_ms);

 private:
  bool more(int timeout_ms);  // reads something into buffer_

  int fd_ = -1;
  std::string buffer_;
};

}  // namespace bitalloc::testing
