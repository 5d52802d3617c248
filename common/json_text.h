// JSON as text that always comes out: bytes that are not UTF-8 (a path, a quoted message) are
// replaced instead of throwing, so that no input can end a process that only wants to report it.
#pragma once

#include <string>

#include "common/json.h"

namespace bitalloc {

// `indent` below 0: one line.
std::string json_text(const Json& json, int indent = -1);

}  // namespace bitalloc
