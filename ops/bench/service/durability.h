// Whether "acknowledged" means "durable": load, kill -9 of the coordinator in the middle of it, and
// Redis asked for every acknowledged result.
#pragma once

#include <string>

#include "common/status.h"

namespace bitalloc::bench {

// Errors: kInternal naming the first unit that was lost, altered or handed out again.
Status check_durability(const std::string& coordinator);

}  // namespace bitalloc::bench
