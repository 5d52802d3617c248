// Submitting a job and following it to its end.
#pragma once

#include <string>
#include <vector>

#include "common/search_spec.h"
#include "ops/cli/connection.h"

namespace bitalloc::cli {

// How a followed job ended when it did not get done.
struct Ending {
  enum class Kind { kDone, kFailed, kDetached };
  Kind kind = Kind::kDone;
  Error error;  // unless done
};

// Shows the progress of `id` on stderr until it ends. Ctrl-C and a job that failed or was
// cancelled are endings; errors are those of the connection.
Result<Ending> follow(Connection& connection, const std::string& id,
                      const std::string& how_to_resume);

// Prints the ending's error; the exit code of the command.
int report_ending(const Context& context, const Ending& ending);

// Where a search stands among others: levels go strictly one after the other, within one each gets
// worker time by its share.
struct Rank {
  int priority = 0;
  double share = 1;
};

// Submits; the search status.
Result<Json> submit_spec(Connection& connection, const std::string& id, const SearchSpec& spec,
                         std::vector<std::string> blobs, const Rank& rank = {});

// On one's own machine the newest command goes first: a search whose command was interrupted or
// killed does not hold up the next one. Does nothing with --server.
Status put_first(Connection& connection, const std::string& id);

// Workers for the local service; with --server it has its own.
struct WorkerFlags {
  int workers = 1;
  int threads = 0;          // a process; 0: cores / processes
  int tensor_parallel = 1;  // processes a worker, which share the model
  std::string device = "auto";
  // Sizes as given; empty: the worker's default.
  std::string memory_limit;
  std::string activation_memory;
  std::string host_activation_memory;
};
void add_worker_options(CLI::App* command, WorkerFlags& flags);
Status want_workers(Connection& connection, const WorkerFlags& flags);

}  // namespace bitalloc::cli
