// Running whole configurations on data, durably: what `validate` and `refine` share.
#pragma once

#include <optional>
#include <string>

#include "common/checkpoint.h"
#include "common/tokens.h"
#include "ops/cli/follow.h"

namespace bitalloc::cli {

struct ValidationFlags {
  std::string data;
  std::string model;      // empty: where the search found it
  int64_t sequences = 0;  // at most; 0: the search's
  int64_t length = 0;
};

// --data with its description, --model.
void add_validation_options(CLI::App* command, ValidationFlags& flags, const std::string& data);

// `spec` with the model's place by the flags, which must hold the weights that were searched.
// Errors: kInvalidArgument, kMismatch naming --model.
Status use_model(const ValidationFlags& flags, SearchSpec& spec);

// Errors: kInvalidArgument naming file and field.
Result<TokenSet> validation_tokens(const Context& context, const ValidationFlags& flags,
                                   const SearchSpec& spec);

struct ValidationRun {
  Ending ending;
  std::optional<Checkpoint> checkpoint;  // when done
};

// The job `spec` of a search on `tokens`, submitted under a name that follows from the search's and
// the fingerprint, until it ends: what was measured before does not run again.
Result<ValidationRun> run_validation(Connection& connection, const std::string& search,
                                     const SearchSpec& spec, const TokenSet& tokens,
                                     const WorkerFlags& workers);

}  // namespace bitalloc::cli
