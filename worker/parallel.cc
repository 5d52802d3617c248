#include "worker/parallel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <mutex>
#include <new>
#include <optional>
#include <string>

namespace bitalloc {
namespace {

// The first line: what follows in c10::Error is a stack trace.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Status guarded(const std::function<Status()>& body) {
  const char* hint = "give fewer sequences a batch, or shorter ones";
  try {
    return body();
  } catch (const CollectiveError& e) {
    return unavailable(first_line(e.what()));
  } catch (const c10::OutOfMemoryError& e) {
    return resource_exhausted(first_line(e.what_without_backtrace()), "", hint);
  } catch (const std::bad_alloc&) {
    return resource_exhausted("out of memory", "", hint);
  } catch (const c10::Error& e) {
    const std::string what = first_line(e.what_without_backtrace());
    // The CPU allocator has no exception type of its own.
    if (what.find("not enough memory") != std::string::npos) {
      return resource_exhausted(what, "", hint);
    }
    return internal_error("LibTorch: " + what);
  } catch (const std::exception& e) {
    return internal_error(first_line(e.what()));
  }
}

int64_t Lanes::slots() const {
  return device.is_cpu() && group->is_single() ? std::max(1, at::get_num_threads()) : 1;
}

Status run_items(const Lanes& lanes, int64_t count, const std::atomic<bool>& cancel,
                 const std::function<Status(int64_t item, int64_t slot)>& body, int64_t whole) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards failed_item and failure
  int64_t failed_item = count;
  std::optional<Error> failure;
  const auto work = [&](int64_t slot) {
    const c10::InferenceMode guard;  // thread-local, so every thread needs its own
    for (int64_t item = next++; item < count && !stop; item = next++) {
      Status status = guarded([&]() -> Status {
        if (lanes.stopped(cancel)) return cancelled("cancelled");
        return body(item, slot);
      });
      if (status.ok()) continue;
      stop = true;
      const std::lock_guard lock(mutex);
      if (item < failed_item) {
        failed_item = item;
        failure = std::move(status).error();
      }
    }
  };
  const int64_t slots = std::min(lanes.slots(), std::max(count, whole));
  if (slots <= 1) {
    work(0);
  } else {
    at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) work(slot);
    });
  }
  if (failure) return *std::move(failure);
  return {};
}

}  // namespace bitalloc
