// Bytes for people.
#pragma once

#include <cstdint>
#include <string>

namespace bitalloc {

// "1.50 GiB (1610612736 bytes)", "1023 bytes".
std::string bytes_text(int64_t bytes);

}  // namespace bitalloc
