// Ranks of a group as threads of a test: real Gloo over loopback, a store in memory.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/collective.h"

namespace bitalloc {

class MemoryStore final : public RendezvousStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    const bool found =
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return values_.contains(key); });
    if (!found) throw CollectiveError("nobody set " + key);
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// body(group) on every rank at once; returns when all have ended.
inline void on_ranks(int size, const std::function<void(Collective&)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      auto group = connect_gloo(store, rank, size, "127.0.0.1", std::chrono::seconds(30));
      BA_CHECK(group.ok(), group.error().message);
      body(**group);
    });
  }
}

}  // namespace bitalloc
