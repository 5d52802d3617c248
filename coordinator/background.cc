#include "coordinator/background.h"

#include <boost/asio/post.hpp>

namespace bitalloc {

Background::Background(boost::asio::io_context& loop, size_t capacity)
    : loop_(loop), capacity_(capacity), thread_([this] { run(); }) {}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Background::submit(Job job) {
  const std::lock_guard lock(mutex_);
  if (jobs_.size() >= capacity_) return false;
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return true;
}

void Background::run() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    boost::asio::post(loop_, job());
  }
}

}  // namespace bitalloc
