// Which version of the protocol two programs speak with each other. The frames ("BA1") are how a
// message is cut; the protocol is what the messages mean.
//
// Whoever begins a conversation (a worker's `hello`, a client's `info`) says what it speaks as
// `"protocol": [oldest … newest]`; the answer says the chosen one as `"protocol"`, the newest that
// both speak. Who says nothing speaks 1.
#pragma once

#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace bitalloc {

inline constexpr int kOldestProtocol = 1;
inline constexpr int kNewestProtocol = 1;

// What this program speaks: every version from kOldestProtocol to kNewestProtocol.
std::vector<int> spoken_protocols();

// The newest version that `header` offers and this coordinator speaks. `peer` names who offers it
// ("worker host-17", "client"). Errors: kUnsupported saying which side to update, kInvalidArgument
// for an offer that is not a list of numbers.
Result<int> choose_protocol(const Json& header, const std::string& peer);

}  // namespace bitalloc
