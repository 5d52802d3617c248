// Debian's Gloo, linked directly. LibTorch carries another version of it and exports its symbols
// too: the program must list libgloo before libtorch_cpu (collective_test looks).
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>

#include "worker/collective.h"

namespace bitalloc {
namespace {

using std::chrono::milliseconds;

constexpr int kConnectFactor = 5;  // Gloo waits so many timeouts for a connection (pair.cc)

class GlooStore final : public gloo::rendezvous::Store {
 public:
  explicit GlooStore(std::shared_ptr<RendezvousStore> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set("gloo/" + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_->get("gloo/" + key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) get(key);
  }

 private:
  std::shared_ptr<RendezvousStore> store_;  // shared with the rest of the rank's group
};

class GlooCollective final : public Collective {
 public:
  GlooCollective(std::shared_ptr<gloo::rendezvous::Context> context)
      : context_(std::move(context)) {}

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  void all_reduce_sum(const at::Tensor& x) override {
    if (x.scalar_type() == at::kFloat) {
      all_reduce(x, x.mutable_data_ptr<float>(), &gloo::sum<float>);
    } else {
      all_reduce(x, x.mutable_data_ptr<double>(), &gloo::sum<double>);
    }
  }

  void all_reduce_max(const at::Tensor& x) override {
    if (x.scalar_type() == at::kFloat) {
      all_reduce(x, x.mutable_data_ptr<float>(), &gloo::max<float>);
    } else {
      all_reduce(x, x.mutable_data_ptr<double>(), &gloo::max<double>);
    }
  }

  at::Tensor all_gather(const at::Tensor& x) override {
    BA_CHECK(x.is_cpu() && x.is_contiguous(), "Gloo moves contiguous tensors of the CPU");
    auto sizes = x.sizes().vec();
    sizes.insert(sizes.begin(), size());
    at::Tensor all = at::empty(sizes, x.options());
    gather_bytes(x.const_data_ptr(), static_cast<size_t>(x.nbytes()), all.mutable_data_ptr());
    return all;
  }

  bool any(bool mine) override {
    float flag = mine ? 1.0F : 0.0F;
    reduce(&flag, 1, &gloo::max<float>);
    return flag > 0.0F;
  }

  std::string broadcast(const std::string& text) override {
    uint64_t length = text.size();
    broadcast_bytes(&length, sizeof length);
    std::string received = text;
    received.resize(length);
    if (length > 0) broadcast_bytes(received.data(), length);
    return received;
  }

  std::vector<std::string> gather_texts(const std::string& text) override {
    const uint64_t length = text.size();
    std::vector<uint64_t> lengths(static_cast<size_t>(size()));
    gather_bytes(&length, sizeof length, lengths.data());
    const uint64_t longest =
        std::max<uint64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
    std::string padded = text;
    padded.resize(longest);
    std::string all(longest * lengths.size(), '\0');
    gather_bytes(padded.data(), longest, all.data());
    std::vector<std::string> texts;
    for (size_t i = 0; i < lengths.size(); ++i)
      texts.push_back(all.substr(i * longest, lengths[i]));
    return texts;
  }

 private:
  using Function = void (*)(void*, const void*, const void*, size_t);

  static void check(const at::Tensor& x) {
    BA_CHECK(x.is_cpu() && x.is_contiguous(), "Gloo moves contiguous tensors of the CPU");
    BA_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble,
             "sums and maxima are of float32 or float64");
  }

  // Runs one call of Gloo: counted, with its exceptions as ours.
  template <typename Call>
  void run(const Call& call) {
    count_call();
    try {
      call();
    } catch (const std::exception& e) {  // gloo::Exception, std::system_error
      throw CollectiveError(e.what());
    }
    count_call();
  }

  template <typename T>
  void reduce(T* data, size_t count, Function function) {
    run([&] {
      gloo::AllreduceOptions options(context_);
      options.setOutput(data, count);
      options.setReduceFunction(function);
      options.setTimeout(timeout());
      gloo::allreduce(options);
    });
  }

  template <typename T>
  void all_reduce(const at::Tensor& x, T* data, Function function) {
    check(x);
    if (x.numel() > 0) reduce(data, static_cast<size_t>(x.numel()), function);
  }

  void gather_bytes(const void* mine, size_t bytes, void* all) {
    if (bytes == 0) return;
    run([&] {
      gloo::AllgatherOptions options(context_);
      options.setInput(static_cast<char*>(const_cast<void*>(mine)), bytes);  // only read
      options.setOutput(static_cast<char*>(all), bytes * static_cast<size_t>(size()));
      options.setTimeout(timeout());
      gloo::allgather(options);
    });
  }

  void broadcast_bytes(void* data, size_t bytes) {
    run([&] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(static_cast<char*>(data), bytes);
      options.setRoot(0);
      options.setTimeout(timeout());
      gloo::broadcast(options);
    });
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;  // shared with its operations
};

}  // namespace

Result<std::unique_ptr<Collective>> connect_gloo(std::shared_ptr<RendezvousStore> store, int rank,
                                                 int size, const std::string& address,
                                                 milliseconds timeout) {
  try {
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(timeout / kConnectFactor);  // calls have timeouts of their own
    GlooStore gloo_store(std::move(store));
    context->connectFullMesh(gloo_store, device);
    return std::unique_ptr<Collective>(std::make_unique<GlooCollective>(std::move(context)));
  } catch (const std::exception& e) {
    return unavailable(fmt::format("rank {} of {} cannot join its group from {}: {}", rank, size,
                                   address, e.what()),
                       "--rendezvous", "start every rank, with the same --tp and --rendezvous");
  }
}

}  // namespace bitalloc
