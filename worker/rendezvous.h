// Where the ranks of a group meet before they are connected: a small key-value service in rank 0
// (c10d::TCPStore of LibTorch), which also carries their signs of life afterwards.
//
// It asks nobody who they are: the address must be one that only the group's hosts reach, loopback
// for ranks of one machine.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/status.h"
#include "worker/collective.h"

namespace bitalloc {

struct RendezvousOptions {
  // "HOST:PORT": rank 0 listens there, on that address alone. "file:PATH": on a free port of
  // 127.0.0.1, which rank 0 writes to PATH, a file that must not be there before.
  std::string address;
  int rank = 0;
  std::chrono::milliseconds timeout{60'000};  // for rank 0 to be there, and for every `get`
};

struct Rendezvous {
  std::shared_ptr<RendezvousStore> store;  // shared with the transports that connect through it
  std::string own_address;                 // this host's, as the others reach it
};

// A rank 0 takes one process of each rank: one that is started again waits for the next rank 0.
// Errors: kInvalidArgument for an address that is none, kUnavailable when rank 0 is not there, or
// has had a process of this rank for all of the timeout.
Result<Rendezvous> meet(const RendezvousOptions& options);

}  // namespace bitalloc
