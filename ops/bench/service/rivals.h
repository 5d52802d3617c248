// What the same machine does without the service, for the ratios of the load table.
//
// Each runs for about `seconds` and gives {"per_second", "p50_ms", "p99_ms", "max_ms", …}.
#pragma once

#include <string>

#include "common/json.h"
#include "coordinator/redis_connection.h"

namespace bitalloc::bench {

// fdatasync of the disk alone: one payload appended to a file of `directory`, then synced.
Result<Json> disk_alone(const std::string& directory, size_t payload_bytes, double seconds);

// SETs of the payload, `pipeline` at once, each pipeline awaited. Of 1: one result a commit. Of
// hundreds: what Redis takes when nothing else is to be done.
Result<Json> redis_alone(const RedisAddress& address, size_t payload_bytes, size_t pipeline,
                         double seconds);

}  // namespace bitalloc::bench
