#include "coordinator/http/access.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>

#include "common/sha256.h"

namespace bitalloc::http {
namespace {

constexpr size_t kMinTokenBytes = 32;
constexpr size_t kMaxTokenBytes = 512;
constexpr std::string_view kTokenCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=";

bool same_digest(const std::string& a, const std::string& b) {
  return !a.empty() && a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

template <typename Map, typename Earlier>
void drop_earliest(Map& map, Earlier earlier) {
  const auto first = std::min_element(map.begin(), map.end(), [&](const auto& a, const auto& b) {
    return earlier(a.second, b.second);
  });
  if (first != map.end()) map.erase(first);
}

}  // namespace

Status check_token(const std::string& token, const std::string& source) {
  const char* hint = "a good one: openssl rand -hex 32";
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
    return invalid_argument(fmt::format("the token of {} has {} characters, not {} to {}", source,
                                        token.size(), kMinTokenBytes, kMaxTokenBytes),
                            source, hint);
  }
  if (token.find_first_not_of(kTokenCharacters) != std::string::npos) {
    return invalid_argument(
        fmt::format("the token of {} has characters that no bearer token may have", source), source,
        hint);
  }
  return {};
}

Access::Access(const Tokens& tokens, Random random) : random_(std::move(random)) {
  if (!tokens.operator_token.empty()) operator_digest_ = sha256_hex(tokens.operator_token);
  if (!tokens.viewer_token.empty()) viewer_digest_ = sha256_hex(tokens.viewer_token);
}

Role Access::role_of_token(std::string_view token) const {
  const std::string digest = sha256_hex(token);
  // Both are compared, whatever the first says.
  const bool is_operator = same_digest(digest, operator_digest_);
  const bool is_viewer = same_digest(digest, viewer_digest_);
  if (is_operator) return Role::kOperator;
  return is_viewer ? Role::kViewer : Role::kNone;
}

Role Access::role_of_session(std::string_view id, TimeMs now) {
  const auto found = sessions_.find(sha256_hex(id));
  if (found == sessions_.end()) return Role::kNone;
  if (now < found->second.ends) return found->second.role;
  sessions_.erase(found);
  return Role::kNone;
}

std::string Access::log_in(Role role, TimeMs now) {
  std::erase_if(sessions_, [&](const auto& entry) { return entry.second.ends <= now; });
  if (sessions_.size() >= kMaxSessions) {
    drop_earliest(sessions_, [](const Session& a, const Session& b) { return a.ends < b.ends; });
  }
  std::string id = random_();
  sessions_[sha256_hex(id)] = {role, now + kSessionMs};
  return id;
}

void Access::log_out(std::string_view id) { sessions_.erase(sha256_hex(id)); }

void Access::note_failure(const std::string& address, TimeMs now) {
  const auto over = [&](const Failures& f) { return now - f.since >= kFailureWindowMs; };
  if (failures_.size() >= kMaxAddresses && !failures_.contains(address)) {
    drop_earliest(failures_,
                  [](const Failures& a, const Failures& b) { return a.since < b.since; });
  }
  Failures& failures = failures_[address];
  if (failures.count == 0 || over(failures)) failures = {now, 0};
  ++failures.count;
}

TimeMs Access::must_wait_ms(const std::string& address, TimeMs now) const {
  const auto found = failures_.find(address);
  if (found == failures_.end() || found->second.count < kMaxFailures) return 0;
  return std::max<TimeMs>(0, found->second.since + kFailureWindowMs - now);
}

}  // namespace bitalloc::http
