// How sure an assignment is, for people: the object "confidence" (solver/confidence_json.h).
#pragma once

#include <string>

#include "common/json.h"

namespace bitalloc::cli {

std::string confidence_text(const Json& confidence);

}  // namespace bitalloc::cli
