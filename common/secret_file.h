// Secrets, and the files that hold them: only their owner may read those.
#pragma once

#include <filesystem>
#include <string>

#include "common/status.h"

namespace bitalloc {

// Others than the owner can neither read nor write `file`. A file of root may be readable by its
// group: so Kubernetes mounts secrets. Errors: kInvalidArgument (field = the path) with the command
// that mends it.
Status check_secret_mode(const std::filesystem::path& file);

// The first line of a file that passes check_secret_mode. Errors: that one's; kInvalidArgument when
// there is no such file or its first line is empty.
Result<std::string> read_secret_file(const std::filesystem::path& file);

// Makes `file` with mode 0600 and one line, unless it is there already: then it stays as it is.
// Errors: kInvalidArgument with the system's reason.
Status make_secret_file(const std::filesystem::path& file, const std::string& secret);

// 256 random bits as 64 hexadecimal digits.
std::string random_secret();

}  // namespace bitalloc
