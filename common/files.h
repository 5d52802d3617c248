// Reading whole files and replacing them atomically.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/status.h"

namespace bitalloc {

// Errors: kInvalidArgument (field = the path) when missing, a directory, unreadable, or larger than
// `max_bytes`.
Result<std::string> read_file(const std::filesystem::path& file,
                              size_t max_bytes = size_t{1} << 32);

// Writes beside `file`, flushes to disk, renames over it: readers see the old or the new content.
// A symbolic link keeps pointing to its file, which is what gets replaced; a pipe or a character
// device is written to directly.
// Errors: kResourceExhausted or kInvalidArgument with the system's reason (field = the path).
Status write_file_atomically(const std::filesystem::path& file, std::string_view content);

}  // namespace bitalloc
