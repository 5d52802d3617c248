// What a running process has used, from /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace bitalloc::bench {

double cpu_seconds(pid_t pid);      // user and system, all threads; 0 when it is gone
int64_t resident_bytes(pid_t pid);  // 0 when it is gone

}  // namespace bitalloc::bench
