// Answers about a search: from a checkpoint file without any service when one is at hand, else from
// the service.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/checkpoint.h"
#include "ops/cli/connection.h"
#include "solver/allocate.h"

namespace bitalloc::cli {

class Answers {
 public:
  // `file` when not empty; else, for the local home, the file that its coordinator keeps of a
  // complete search; else the service. Errors: kInvalidArgument for a bad file, kUnavailable.
  static Result<Answers> open(const Context& context, const std::string& id,
                              const std::string& file);

  // What allocate() gives. `bits` absent: the budget asked at submission. Errors: also kUnsupported
  // when the service is too old for an option.
  Result<Json> assignment(std::optional<double> bits, const AllocateOptions& options);
  // What frontier_json() gives. Of a service whose answer is too long for a message it takes the
  // checkpoint and answers from that.
  Result<Json> frontier(bool partial);
  // The whole search; fetched when it is not here yet.
  Result<const Checkpoint*> checkpoint();

  const std::string& id() const { return id_; }
  // Null unless the service was needed.
  Connection* connection() { return connection_.get(); }

 private:
  std::string id_;
  std::optional<Checkpoint> checkpoint_;
  std::unique_ptr<Connection> connection_;
};

// The checkpoint of a search, as the service holds it.
Result<Checkpoint> fetch_checkpoint(Connection& connection, const std::string& id);

// Tables for people.
std::string assignment_text(const Json& assignment);

}  // namespace bitalloc::cli
