#include "coordinator/http/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>

namespace bitalloc::testing {
namespace {

using Clock = std::chrono::steady_clock;

int left_ms(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return std::max<int>(0, static_cast<int>(left.count()));
}

Answer parse_head(const std::string& head) {
  Answer answer;
  answer.head = head;
  std::istringstream lines(head);
  std::string line;
  std::getline(lines, line);
  if (line.starts_with("HTTP/1.1 ")) answer.status = std::stoi(line.substr(9));
  while (std::getline(lines, line) && line != "\r") {
    const size_t colon = line.find(": ");
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    answer.headers[name] = line.substr(colon + 2, line.size() - colon - 3);
  }
  return answer;
}

}  // namespace

RawClient::RawClient(int port) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return;
  ::close(fd_);
  fd_ = -1;
}

RawClient::~RawClient() {
  if (fd_ >= 0) ::close(fd_);
}

bool RawClient::send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool RawClient::more(int timeout_ms) {
  pollfd poll_fd = {fd_, POLLIN, 0};
  if (::poll(&poll_fd, 1, timeout_ms) <= 0) return false;
  char bytes[16'384];
  const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string RawClient::read_until(const std::string& text, int timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (buffer_.find(text) == std::string::npos && more(left_ms(end))) continue;
  const size_t at = buffer_.find(text);
  const size_t size = at == std::string::npos ? buffer_.size() : at + text.size();
  std::string read = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return read;
}

Answer RawClient::read(int timeout_ms, bool head_only) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  Answer answer = parse_head(read_until("\r\n\r\n", timeout_ms));
  const auto length = answer.headers.find("content-length");
  if (head_only || length == answer.headers.end()) return answer;
  const size_t size = std::stoul(length->second);
  while (buffer_.size() < size && more(left_ms(end))) continue;
  answer.body = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return answer;
}

bool RawClient::closed(int timeout_ms) {
  pollfd poll_fd = {fd_, POLLIN, 0};
  char byte = 0;
  return buffer_.empty() && ::poll(&poll_fd, 1, timeout_ms) > 0 && ::recv(fd_, &byte, 1, 0) <= 0;
}

}  // namespace bitalloc::testing
