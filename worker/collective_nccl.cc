// NCCL: nccl.h directly. The communicator is non-blocking, so that setting it up can time out;
// calls are queued on the current stream, and whoever waits for that stream is watched by the
// progress of calls (worker/group.h), whose end is `abort`.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <nccl.h>

#include <ATen/ATen.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "worker/collective.h"

namespace bitalloc {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kIdKey = "nccl_unique_id";

ncclDataType_t nccl_type(const at::Tensor& x) {
  BA_CHECK(x.is_cuda() && x.is_contiguous(), "NCCL moves contiguous tensors of a GPU");
  if (x.scalar_type() == at::kFloat) return ncclFloat32;
  if (x.scalar_type() == at::kBFloat16) return ncclBfloat16;
  BA_CHECK(x.scalar_type() == at::kDouble, "collectives move float32, float64 or bfloat16");
  return ncclFloat64;
}

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw CollectiveError(fmt::format("{}: {}", what, ncclGetErrorString(result)));
}

class NcclCollective final : public Collective {
 public:
  NcclCollective(std::unique_ptr<Collective> host, int device)
      : host_(std::move(host)), device_(static_cast<c10::DeviceIndex>(device)) {}

  ~NcclCollective() override { abort(); }

  void connect(const ncclUniqueId& id, milliseconds timeout) {
    const c10::cuda::CUDAGuard guard(device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    set_timeout(timeout);
    settle("ncclCommInitRankConfig",
           [&] { return ncclCommInitRankConfig(&comm_, size(), id, rank(), &config); });
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void all_reduce_sum(const at::Tensor& x) override { all_reduce(x, ncclSum); }
  void all_reduce_max(const at::Tensor& x) override { all_reduce(x, ncclMax); }

  at::Tensor all_gather(const at::Tensor& x) override {
    auto sizes = x.sizes().vec();
    sizes.insert(sizes.begin(), size());
    at::Tensor all = at::empty(sizes, x.options());
    const ncclDataType_t type = nccl_type(x);
    run("ncclAllGather", [&](cudaStream_t stream) {
      return ncclAllGather(x.const_data_ptr(), all.mutable_data_ptr(),
                           static_cast<size_t>(x.numel()), type, comm_, stream);
    });
    return all;
  }

  bool any(bool mine) override { return on_host()->any(mine); }
  std::string broadcast(const std::string& text) override { return on_host()->broadcast(text); }
  std::vector<std::string> gather_texts(const std::string& text) override {
    return on_host()->gather_texts(text);
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  Collective* on_host() {
    count_call();
    host_->set_timeout(timeout());
    return host_.get();
  }

  void all_reduce(const at::Tensor& x, ncclRedOp_t operation) {
    const ncclDataType_t type = nccl_type(x);
    run("ncclAllReduce", [&](cudaStream_t stream) {
      return ncclAllReduce(x.const_data_ptr(), x.mutable_data_ptr(), static_cast<size_t>(x.numel()),
                           type, operation, comm_, stream);
    });
  }

  template <typename Call>
  void run(const char* what, const Call& call) {
    count_call();
    const c10::cuda::CUDAGuard guard(device_);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_).stream();
    settle(what, [] { return ncclInProgress; });  // an earlier call may have failed since
    settle(what, [&] { return call(stream); });
    count_call();
  }

  // Asks the communicator for something and waits until that is under way. Never holds the lock
  // while it waits: `abort` must get through.
  template <typename Call>
  void settle(const char* what, const Call& call) {
    const auto deadline = Clock::now() + timeout();
    ncclResult_t result = locked(what, call);
    while (result == ncclInProgress) {
      if (Clock::now() > deadline) {
        throw CollectiveError(fmt::format("{}: nothing within {} ms", what, timeout().count()));
      }
      result = locked(what, [&] {
        ncclResult_t state = ncclSuccess;
        check(ncclCommGetAsyncError(comm_, &state), what);
        return state;
      });
      if (result == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    check(result, what);
  }

  template <typename Call>
  ncclResult_t locked(const char* what, const Call& call) {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw CollectiveError(fmt::format("{}: the group is broken", what));
    return call();
  }

  const std::unique_ptr<Collective> host_;
  const c10::DeviceIndex device_;
  std::mutex mutex_;  // guards what follows
  bool aborted_ = false;
  ncclComm_t comm_ = nullptr;
};

ncclUniqueId share_unique_id(RendezvousStore& store, int rank) {
  ncclUniqueId id;
  if (rank == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    store.set(kIdKey, std::string(id.internal, sizeof id.internal));
    return id;
  }
  const std::string text = store.get(kIdKey);
  if (text.size() != sizeof id.internal) throw CollectiveError("rank 0 has another NCCL");
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

}  // namespace

Result<std::unique_ptr<Collective>> connect_nccl(RendezvousStore& store,
                                                 std::unique_ptr<Collective> host, int device,
                                                 milliseconds timeout) {
  const int rank = host->rank();
  try {
    auto group = std::make_unique<NcclCollective>(std::move(host), device);
    group->connect(share_unique_id(store, rank), timeout);
    return std::unique_ptr<Collective>(std::move(group));
  } catch (const std::exception& e) {  // CollectiveError, c10::Error
    return unavailable(
        fmt::format("rank {} cannot join its group with GPU {}: {}", rank, device, e.what()),
        "--device", "NCCL_DEBUG=INFO says more");
  }
}

}  // namespace bitalloc
