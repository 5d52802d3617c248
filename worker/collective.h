// What the ranks of a tensor-parallel group do together: the only seam to NCCL and Gloo.
//
// A group is one model cut into as many shards as it has ranks. Every rank makes the same calls in
// the same order, with tensors of the same sizes and types; results are the same bits on all ranks.
// Calls on tensors run on the group's device (NCCL: queued on the current stream), the others on
// the host. Nothing waits for ever: a call that makes no progress for `timeout` throws.
//
// Thread rule: one thread at a time; `calls`, `set_timeout` and `abort` may be used from any other.
// Errors: CollectiveError, from deep inside a forward pass; `guarded` (parallel.h) makes it
// kUnavailable. A group in which one call has failed is of no more use: its ranks end.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/status.h"

namespace bitalloc {

// A rank did not answer in time, has gone, or the transport failed.
class CollectiveError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Collective {
 public:
  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  bool is_single() const { return size() == 1; }

  // In place: every element of x is summed over the ranks. x: contiguous, float32 or float64.
  virtual void all_reduce_sum(const at::Tensor& x) = 0;
  // In place: the largest of the ranks' elements. x: as above, without NaN (nobody promises what
  // becomes of one).
  virtual void all_reduce_max(const at::Tensor& x) = 0;
  // x of every rank, in the order of ranks: [size, …]. x: contiguous, of any type of numbers that
  // this program computes in.
  virtual at::Tensor all_gather(const at::Tensor& x) = 0;

  // Whether any rank says so. On the host.
  virtual bool any(bool mine) = 0;
  // The text that rank 0 gives; what the others give is ignored. On the host.
  virtual std::string broadcast(const std::string& text) = 0;
  // Everybody's text, in the order of ranks. On the host.
  virtual std::vector<std::string> gather_texts(const std::string& text) = 0;

  // Lets calls that wait now fail soon, where the transport can.
  virtual void abort() {}

  // How long a call may wait for the slowest rank.
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms_); }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ms_ = timeout.count(); }
  // Calls begun and ended so far: moves as long as this rank gets on.
  uint64_t calls() const { return calls_; }

 protected:
  void count_call() { ++calls_; }

 private:
  std::atomic<int64_t> timeout_ms_{20'000};
  std::atomic<uint64_t> calls_{0};
};

// A group of one rank: every call returns at once.
Collective& single_rank();

// Whether any rank wants to stop: all ranks get the same answer, so none enters a product that
// another has left. A group of one looks at its flag.
inline bool agreed(Collective& group, const std::atomic<bool>& flag) {
  return group.is_single() ? flag.load() : group.any(flag);
}

// A longer timeout for as long as it lives: for work whose length differs between ranks.
class Patience {
 public:
  Patience(Collective& group, std::chrono::milliseconds timeout)
      : group_(group), before_(group.timeout()) {
    group_.set_timeout(timeout);
  }
  ~Patience() { group_.set_timeout(before_); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  Collective& group_;
  const std::chrono::milliseconds before_;
};

// The lowest rank's error if any rank has one, with "rank N: " before its message; ok on all ranks
// otherwise. Throws CollectiveError.
Status agree(Collective& group, const Status& mine);

// Where ranks of a group find one another: texts by name, as one of them sets them.
// Thread rule: any thread. Errors: CollectiveError after the timeout of its maker.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until somebody has set it.
  virtual std::string get(const std::string& key) = 0;
};

// CPU tensors over TCP, by Gloo. `address`: this host's, as the other ranks reach it.
// Errors: kUnavailable when the other ranks do not come within `timeout`.
Result<std::unique_ptr<Collective>> connect_gloo(std::shared_ptr<RendezvousStore> store, int rank,
                                                 int size, const std::string& address,
                                                 std::chrono::milliseconds timeout);

#ifdef BITALLOC_HAVE_CUDA
// Tensors of one CUDA device a rank by NCCL; calls on the host go through `host`.
// Errors: kUnavailable with NCCL's reason, or when the other ranks do not come within `timeout`.
Result<std::unique_ptr<Collective>> connect_nccl(RendezvousStore& store,
                                                 std::unique_ptr<Collective> host, int device,
                                                 std::chrono::milliseconds timeout);
#endif

}  // namespace bitalloc
