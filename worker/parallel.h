// Independent pieces of tensor work over ATen's threads.
//
// On CPUs each piece runs on one thread, start to end: the products inside are single-threaded, so
// nothing waits for the slowest thread after every operator, activations stay in that core's cache,
// and results do not depend on the number of threads. On GPUs the pieces run one after the other.
// So they do on the ranks of a group, in the same order on all: what they do together must be in
// step. The products inside have all of the rank's threads then.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "common/status.h"
#include "worker/collective.h"

namespace bitalloc {

// Where pieces of work run.
struct Lanes {
  c10::Device device;
  Collective* group;

  // Pieces that run at once.
  int64_t slots() const;
  // Whether to stop here: the same answer on every rank.
  bool stopped(const std::atomic<bool>& cancel) const { return agreed(*group, cancel); }
};

// Runs body(item, slot) for items 0 … count−1; `slot` < lanes.slots() names a thread's own
// buffers. Stops early, with the error of the lowest item that failed, or with kCancelled when
// `cancel` is set on any rank. Exceptions of LibTorch become errors.
// `whole`: how many items there would be if this were not a part of something larger. A lone item's
// products run on all threads and may round differently, so a part of many runs as they would.
Status run_items(const Lanes& lanes, int64_t count, const std::atomic<bool>& cancel,
                 const std::function<Status(int64_t item, int64_t slot)>& body, int64_t whole = 0);

// Runs `body`, with exceptions of LibTorch as errors: kResourceExhausted for memory, kUnavailable
// when the group of ranks is broken.
Status guarded(const std::function<Status()>& body);

}  // namespace bitalloc
