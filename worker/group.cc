#include "worker/group.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/rendezvous.h"

namespace bitalloc {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kBeat{250};
// Blame: silence that tells a rank which is gone from one that is merely between two beats, and how
// long to look for one.
constexpr milliseconds kSuspicious{1'250};
constexpr milliseconds kLongestLook{2'500};

std::string beat_key(int rank) { return fmt::format("beat/{}", rank); }

// What a rank's last sign of life said, and when it came.
struct Heard {
  std::string beat;
  uint64_t calls = 0;
  Clock::time_point at = Clock::now();
};

// What must be alike on all ranks.
std::string identity(const GroupOptions& options) {
  return fmt::format("bitalloc {}, {} ranks, {}", BITALLOC_VERSION, options.size,
                     options.cuda_device < 0 ? "cpu" : "cuda");
}

Status check_identities(Collective& group, const GroupOptions& options) {
  const std::vector<std::string> all = group.gather_texts(identity(options));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return mismatch(fmt::format("rank 0 is {}, but rank {} is {}", all[0], rank, all[rank]), "--tp",
                    "start the same program with the same flags everywhere");
  }
  return {};
}

}  // namespace

class RankGroup::Impl {
 public:
  Impl(GroupOptions options, std::shared_ptr<RendezvousStore> store,
       std::unique_ptr<Collective> collective)
      : options_(std::move(options)),
        store_(std::move(store)),
        collective_(std::move(collective)),
        heard_(static_cast<size_t>(options_.size)) {
    beat_thread_ = std::jthread([this](const std::stop_token& stop) { beat(stop); });
  }

  const GroupOptions& options() const { return options_; }
  Collective& collective() { return *collective_; }

  Status check(bool working) {
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    const int silent = most_silent();
    if (silent >= 0 && now - heard_[silent].at > options_.silence) {
      return unavailable(fmt::format("tensor parallel: {}", describe_silence(silent, now)));
    }
    if (!working || collective_->calls() != seen_calls_) {
      seen_calls_ = collective_->calls();
      progress_ = now;
    }
    if (now - progress_ <= collective_->timeout()) return {};
    return unavailable(fmt::format("tensor parallel: rank {} makes no progress for {} s; {}",
                                   options_.rank, seconds(now - progress_), slowest()));
  }

  Error blame(const std::string& what) {
    const auto deadline = Clock::now() + kLongestLook;
    while (true) {
      const auto now = Clock::now();
      {
        const std::lock_guard lock(mutex_);
        const int silent = most_silent();
        if (silent >= 0 && now - heard_[silent].at > kSuspicious) {
          return unavailable(
              fmt::format("tensor parallel: {} ({})", describe_silence(silent, now), what));
        }
        if (now > deadline) {
          return unavailable(fmt::format("tensor parallel: {} ({})", slowest(), what));
        }
      }
      std::this_thread::sleep_for(kBeat / 5);
    }
  }

 private:
  static std::string seconds(Clock::duration duration) {
    return fmt::format("{:.1f}", std::chrono::duration<double>(duration).count());
  }

  // The other rank that has been silent for longest. Rank 0 carries everybody's signs: when it is
  // about as silent as another, it is the one.
  int most_silent() const {
    int silent = -1;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (rank == options_.rank) continue;
      if (silent < 0 || heard_[rank].at + 3 * kBeat < heard_[silent].at) silent = rank;
    }
    return silent;
  }

  std::string describe_silence(int rank, Clock::time_point now) const {
    return fmt::format("rank {} of {} has not been heard for {} s", rank, options_.size,
                       seconds(now - heard_[rank].at));
  }

  // Whose calls are fewest, when they are fewer than ours.
  std::string slowest() const {
    int slowest = options_.rank;
    uint64_t fewest = collective_->calls();
    for (int rank = 0; rank < options_.size; ++rank) {
      if (rank == options_.rank || heard_[rank].calls >= fewest) continue;
      slowest = rank;
      fewest = heard_[rank].calls;
    }
    if (slowest == options_.rank) return "the connection of a rank broke";
    return fmt::format("rank {} of {} lives, but does not come to a call", slowest, options_.size);
  }

  // Shows that this process lives, and looks after the others.
  void beat(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    for (uint64_t count = 0; !stop.stop_requested(); ++count) {
      try {
        store_->set(beat_key(options_.rank), fmt::format("{} {}", count, collective_->calls()));
        listen();
      } catch (const CollectiveError& e) {
        spdlog::debug("signs of life: {}", e.what());  // rank 0 is gone: its silence tells
      }
      std::unique_lock lock(mutex);
      wake.wait_for(lock, stop, kBeat, [] { return false; });
    }
  }

  void listen() {
    for (int rank = 0; rank < options_.size; ++rank) {
      if (rank == options_.rank) continue;
      const std::string beat = store_->get(beat_key(rank));
      const std::lock_guard lock(mutex_);
      Heard& heard = heard_[rank];
      if (beat == heard.beat) continue;
      heard = {beat, std::stoull(beat.substr(beat.find(' '))), Clock::now()};
    }
  }

  const GroupOptions options_;
  const std::shared_ptr<RendezvousStore> store_;  // shared with the transports made through it
  const std::unique_ptr<Collective> collective_;

  std::mutex mutex_;  // guards what follows
  std::vector<Heard> heard_;
  uint64_t seen_calls_ = 0;
  Clock::time_point progress_ = Clock::now();

  std::jthread beat_thread_;  // last: stops before the rest goes
};

Result<std::unique_ptr<RankGroup>> RankGroup::join(const GroupOptions& options) {
  BA_ASSIGN_OR_RETURN(Rendezvous rendezvous, meet({.address = options.rendezvous,
                                                   .rank = options.rank,
                                                   .timeout = options.start_timeout}));
  BA_ASSIGN_OR_RETURN(std::unique_ptr<Collective> collective,
                      connect_gloo(rendezvous.store, options.rank, options.size,
                                   rendezvous.own_address, options.start_timeout));
  try {
    BA_RETURN_IF_ERROR(check_identities(*collective, options));
#ifdef BITALLOC_HAVE_CUDA
    if (options.cuda_device >= 0) {
      BA_ASSIGN_OR_RETURN(collective, connect_nccl(*rendezvous.store, std::move(collective),
                                                   options.cuda_device, options.start_timeout));
    }
#endif
  } catch (const CollectiveError& e) {
    return unavailable(
        fmt::format("the group of {} ranks does not get together: {}", options.size, e.what()));
  }
  collective->set_timeout(options.collective_timeout);
  return std::unique_ptr<RankGroup>(new RankGroup(
      std::make_unique<Impl>(options, std::move(rendezvous.store), std::move(collective))));
}

RankGroup::RankGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankGroup::~RankGroup() = default;

int RankGroup::rank() const { return impl_->options().rank; }
int RankGroup::size() const { return impl_->options().size; }
Collective& RankGroup::collective() { return impl_->collective(); }
Status RankGroup::check(bool working) { return impl_->check(working); }
Error RankGroup::blame(const std::string& what) { return impl_->blame(what); }

}  // namespace bitalloc
