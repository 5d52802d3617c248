// What can be frozen, thawed and killed: a coordinator, a worker, Redis, the clients.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "tests/sim/scene.h"

namespace bitalloc::sim {

class Process {
 public:
  Process(Scene& scene, Node node, std::string name)
      : scene_(scene), node_(node), name_(std::move(name)) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;

  Node node() const { return node_; }
  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }
  bool frozen() const { return frozen_; }
  // The process' own steady clock.
  TimeMs clock() const { return scene_.timeline.now() + clock_offset_; }
  void jump_clock(TimeMs ms) { clock_offset_ += ms; }

  // Takes the step now; a frozen process when it wakes; a dead one never.
  void run(Step step) {
    if (!alive_) return;
    if (frozen_ || draining_ || !inbox_.empty()) {
      inbox_.push_back(std::move(step));
    } else {
      step();
    }
  }
  // A timer, or work that takes so long. Ends with this life.
  void later(TimeMs delay_ms, Step step) {
    scene_.timeline.after(delay_ms, [this, life = life_, step = std::move(step)]() mutable {
      if (life == life_) run(std::move(step));
    });
  }

  void freeze() { frozen_ = true; }  // SIGSTOP
  void thaw() {                      // SIGCONT
    if (!alive_ || !frozen_) return;
    frozen_ = false;
    woke();
    drain();
  }
  void kill() {  // SIGKILL
    if (!alive_) return;
    alive_ = frozen_ = false;
    ++life_;
    inbox_.clear();
    died();
  }

 protected:
  virtual void woke() {}
  virtual void died() {}
  void revive() { alive_ = true; }

  Scene& scene_;

 private:
  // Runs what has gathered, in order; a step may freeze or kill the process again.
  void drain() {
    if (draining_) return;
    draining_ = true;
    while (alive_ && !frozen_ && !inbox_.empty()) {
      const Step step = std::move(inbox_.front());
      inbox_.pop_front();
      step();
    }
    draining_ = false;
  }

  const Node node_;
  const std::string name_;
  bool alive_ = true;
  bool frozen_ = false;
  bool draining_ = false;
  uint64_t life_ = 0;
  TimeMs clock_offset_ = 0;
  std::deque<Step> inbox_;
};

}  // namespace bitalloc::sim
