// What a running process uses, from /proc, and how many connections this one may have.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "common/status.h"

namespace bitalloc {

double cpu_seconds(pid_t pid);      // user and system, all threads; 0 when it is gone
int64_t resident_bytes(pid_t pid);  // 0 when it is gone
int count_descriptors(pid_t pid);   // open ones; 0 when it is gone

// As many descriptors as the system lets this user have. Errors: kInternal with the reason; the
// limit stays as it is.
Status raise_descriptor_limit();

}  // namespace bitalloc
