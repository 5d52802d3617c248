// One thread for work that would hold up the event loop: solving, checking submissions, writing
// files. A job runs on this thread and returns what is to be done on the loop with its outcome.
//
// Full policy: submit() says false, takes nothing, and the request is refused as `unavailable`.
#pragma once

#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace bitalloc {

class Background {
 public:
  using Completion = std::function<void()>;  // on the loop
  using Job = std::function<Completion()>;   // on this thread

  // `loop` outlives this object.
  Background(boost::asio::io_context& loop, size_t capacity);
  ~Background();  // finishes the running job, drops the waiting ones

  bool submit(Job job);

 private:
  void run();

  boost::asio::io_context& loop_;
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;   // guarded
  bool stopping_ = false;  // guarded
  std::thread thread_;
};

}  // namespace bitalloc
