// The way into the front for clients that live in this process (HTTP): their requests are answered
// by the same code as those that come by ZeroMQ.
//
// Thread rule: the loop's thread, replies included.
#pragma once

#include <cstdint>
#include <functional>

#include "common/wire.h"

namespace bitalloc {

class RequestPort {
 public:
  using Reply = std::function<void(const wire::Message&)>;
  using Ticket = uint64_t;

  virtual ~RequestPort() = default;

  // `reply` gets every answer to `message`, never inside this call: any number of `event`s when it
  // is a `watch`, then one `ok` or `error`, which is the last.
  virtual Ticket request(wire::Message message, Reply reply) = 0;
  // The asker is gone: no reply from now on. A change that was asked for happens all the same.
  virtual void forget(Ticket ticket) = 0;
  // False while Redis is lost, and once the coordinator stops.
  virtual bool ready() const = 0;
};

}  // namespace bitalloc
