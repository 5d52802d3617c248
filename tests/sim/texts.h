// Events and actions in words, for the trace. Empty: not worth a line.
#pragma once

#include <string>

#include "coordinator/queue.h"

namespace bitalloc::sim {

std::string lease_text(const std::string& search, const UnitId& unit, Fence fence);
std::string text_of(const Event& event);
std::string text_of(const Action& action);

}  // namespace bitalloc::sim
