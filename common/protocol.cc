#include "common/protocol.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace bitalloc {
namespace {

constexpr size_t kMaxOffers = 64;

}  // namespace

std::vector<int> spoken_protocols() {
  std::vector<int> versions;
  for (int version = kOldestProtocol; version <= kNewestProtocol; ++version) {
    versions.push_back(version);
  }
  return versions;
}

Result<int> choose_protocol(const Json& header, const std::string& peer) {
  BA_ASSIGN_OR_RETURN(const auto offered,
                      json_field_or<std::vector<int>>(header, "protocol", "header", {1}));
  if (offered.empty() || offered.size() > kMaxOffers) {
    return invalid_argument("header.protocol must list 1 to 64 versions", "protocol");
  }
  int chosen = 0;
  for (const int version : offered) {
    if (version >= kOldestProtocol && version <= kNewestProtocol) {
      chosen = std::max(chosen, version);
    }
  }
  if (chosen > 0) return chosen;
  const bool peer_is_newer = *std::max_element(offered.begin(), offered.end()) > kNewestProtocol;
  return unsupported(fmt::format("the {} speaks protocol {}, this coordinator {} to {}", peer,
                                 fmt::join(offered, ", "), kOldestProtocol, kNewestProtocol),
                     "protocol",
                     peer_is_newer ? "update the coordinator" : fmt::format("update the {}", peer));
}

}  // namespace bitalloc
