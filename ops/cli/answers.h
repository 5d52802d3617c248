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

  // Objects of the manual's JSON. `bits` absent: the budget asked at submission.
  Result<Json> assignment(std::optional<double> bits, const Pins& pins, bool with_scores);
  Result<Json> frontier();
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
