// Units on every rank of a group: what rank 0 says, and how the others follow.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "worker/group.h"

namespace bitalloc {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kKeepAlive{1'000};
constexpr milliseconds kLook{20};  // at the group's health and at cancellation, while a unit runs

// What rank 0 says: "idle", "stop", or a unit.
constexpr const char* kIdle = "idle";
constexpr const char* kStop = "stop";

// One line of JSON (the header of a `unit` message and the sizes of its blobs), then the blobs.
std::string pack_unit(const UnitWork& work) {
  std::vector<std::string> blobs = {ids_to_blob(work.tokens), mask_to_blob(work.tokens)};
  if (!work.amax.empty()) {
    blobs.emplace_back(reinterpret_cast<const char*>(work.amax.data()),
                       work.amax.size() * sizeof(float));
  }
  Json header = {{"search", work.search.value},
                 {"unit", unit_name(work.unit)},
                 {"fence", work.fence.value},
                 {"spec", to_json(work.spec)},
                 {"sizes", Json::array()}};
  for (const std::string& blob : blobs) header["sizes"].push_back(blob.size());
  std::string text = header.dump() + "\n";
  for (const std::string& blob : blobs) text += blob;
  return text;
}

Result<UnitWork> unpack_unit(const std::string& text) {
  const size_t end = text.find('\n');
  BA_ASSIGN_OR_RETURN(const Json header, parse_json(text.substr(0, end), "rank 0's unit"));
  BA_ASSIGN_OR_RETURN(const auto sizes,
                      json_field<std::vector<size_t>>(header, "sizes", "rank 0's unit"));
  std::vector<std::string> blobs;
  size_t at = end + 1;
  for (const size_t size : sizes) {
    blobs.push_back(text.substr(at, size));
    at += size;
  }
  return unit_work_from_message(header, blobs);
}

// Failures that one rank may have alone, while the others wait for it in a call. All others come
// from what every rank sees alike, and all of them return.
bool breaks_the_group(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kResourceExhausted ||
         code == ErrorCode::kInternal;
}

class GroupRunner final : public UnitRunner {
 public:
  GroupRunner(RankGroup& group, std::unique_ptr<UnitRunner> runner, std::function<void()> on_broken)
      : group_(group), runner_(std::move(runner)), on_broken_(std::move(on_broken)) {
    thread_ = std::thread([this] { lead(); });
  }

  ~GroupRunner() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
      if (broken_) {
        thread_.detach();  // it may wait for a lost rank; the process is about to end
        return;
      }
    }
    thread_.join();
  }

  Result<UnitResult> run(const UnitWork& work, const std::atomic<bool>& cancel) override {
    const auto job = std::make_shared<Job>();
    job->work = work;
    std::unique_lock lock(mutex_);
    if (broken_) return unavailable("this worker's group of ranks is broken");
    job_ = job;
    changed_.notify_all();
    while (!changed_.wait_for(lock, kLook, [&] { return job->result.has_value() || broken_; })) {
      job->cancel = cancel.load();
      if (const Status lost = group_.check(/*working=*/true); !lost.ok()) {
        break_group(lost.error());
        return lost.error();
      }
    }
    if (job->result.has_value()) return *std::move(job->result);
    return unavailable("this worker's group of ranks is broken");
  }

  Json capabilities() const override { return runner_->capabilities(); }
  std::vector<std::string> models() const override { return runner_->models(); }

 private:
  struct Job {  // shared with the leading thread, which may outlive the call of `run`
    UnitWork work;
    std::atomic<bool> cancel{false};
    std::optional<Result<UnitResult>> result;
  };

  void lead() {
    try {
      while (true) {
        const std::shared_ptr<Job> job = next_job();
        if (job == nullptr) {
          const bool stop = is_stopping();
          group_.collective().broadcast(stop ? kStop : kIdle);
          if (stop) return;
          if (const Status lost = group_.check(/*working=*/false); !lost.ok()) {
            return break_group_now(lost.error());
          }
          continue;
        }
        if (!run_job(*job)) return;
      }
    } catch (const CollectiveError& e) {
      break_group_now(group_.blame(e.what()));
    }
  }

  std::shared_ptr<Job> next_job() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kKeepAlive, [this] { return job_ != nullptr || stopping_; });
    return std::exchange(job_, nullptr);
  }

  bool is_stopping() {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  // Returns whether the group is still good.
  bool run_job(Job& job) {
    Result<UnitResult> result = unavailable("not run");
    try {
      group_.collective().broadcast(pack_unit(job.work));
      result = runner_->run(job.work, job.cancel);
    } catch (const CollectiveError& e) {
      result = unavailable(e.what());
    }
    if (!result.ok() && result.error().code == ErrorCode::kUnavailable) {
      result = group_.blame(result.error().message);
    }
    const bool breaks = !result.ok() && breaks_the_group(result.error().code);
    const Error why = breaks ? result.error() : Error{};
    const std::lock_guard lock(mutex_);
    job.result = std::move(result);
    if (breaks) break_group(why);
    changed_.notify_all();
    return !broken_;
  }

  void break_group_now(const Error& why) {
    const std::lock_guard lock(mutex_);
    break_group(why);
  }

  // REQUIRES: mutex_ is held.
  void break_group(const Error& why) {
    if (std::exchange(broken_, true)) return;
    spdlog::error("{}; this worker ends", why.message);
    group_.collective().abort();
    changed_.notify_all();
    on_broken_();
  }

  RankGroup& group_;
  const std::unique_ptr<UnitRunner> runner_;
  const std::function<void()> on_broken_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::shared_ptr<Job> job_;
  bool stopping_ = false;
  bool broken_ = false;

  std::thread thread_;
};

Status follow_until_stopped(RankGroup& group, UnitRunner& runner) {
  const std::atomic<bool> never{false};  // rank 0's flag counts: cancellation is agreed on
  while (true) {
    const std::string command = group.collective().broadcast("");
    if (command == kStop) return {};
    if (command == kIdle) continue;
    BA_ASSIGN_OR_RETURN(const UnitWork work, unpack_unit(command));
    const Result<UnitResult> result = runner.run(work, never);
    if (!result.ok() && breaks_the_group(result.error().code)) return result.error();
  }
}

}  // namespace

std::unique_ptr<UnitRunner> make_group_runner(RankGroup& group, std::unique_ptr<UnitRunner> runner,
                                              std::function<void()> on_broken) {
  return std::make_unique<GroupRunner>(group, std::move(runner), std::move(on_broken));
}

Status follow(RankGroup& group, UnitRunner& runner) {
  struct Following {  // shared with the thread, which may outlive this call
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Status> end;
  };
  const auto shared = std::make_shared<Following>();
  std::thread thread([shared, &group, &runner] {
    Status status;
    try {
      status = follow_until_stopped(group, runner);
    } catch (const CollectiveError& e) {
      status = unavailable(e.what());
    }
    if (!status.ok() && status.error().code == ErrorCode::kUnavailable) {
      status = group.blame(status.error().message);
    }
    const std::lock_guard lock(shared->mutex);
    shared->end = std::move(status);
    shared->changed.notify_all();
  });
  std::unique_lock lock(shared->mutex);
  while (!shared->changed.wait_for(lock, kLook, [&] { return shared->end.has_value(); })) {
    const Status lost = group.check(/*working=*/true);
    if (lost.ok()) continue;
    group.collective().abort();
    thread.detach();
    return lost;
  }
  thread.join();
  return *std::move(shared->end);
}

}  // namespace bitalloc
