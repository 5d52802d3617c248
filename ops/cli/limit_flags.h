// Flags of what an assignment must keep to beside effective bits: memory, exclusions, groups.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/kv_budget.h"
#include "solver/limits.h"

namespace bitalloc::cli {

struct MemoryFlags {
  std::string memory;      // "8GiB"; empty: no such budget
  std::string gpu_memory;  // the same of a whole GPU, weights included
  double utilization = 0.9;
  bool asked() const { return !memory.empty() || !gpu_memory.empty(); }
  int64_t context = 0;
  int64_t sequences = 0;  // 0: 1
  int64_t ranks = 1;
  int64_t block_tokens = 16;
};

struct LimitFlags {
  MemoryFlags memory;
  std::vector<std::string> exclude;  // SITE=CANDIDATE
  std::vector<std::string> same;     // sites, comma-separated
  bool k_not_below_v = false;
  int max_formats = 0;   // 0: any number
  std::string deployed;  // a file
  int max_changes = -1;  // −1: not said
  std::string file;
};

// --memory, --context, --serve-tp, --block-tokens. The caller has `--sequences`, which a search
// uses for its data, too.
void add_memory_options(CLI::App* command, MemoryFlags& flags);
// Those and --sequences, and all others of LimitFlags.
void add_limit_options(CLI::App* command, LimitFlags& flags);

// Nothing without --memory. Errors: kInvalidArgument naming the flag.
Result<std::optional<KvBudget>> memory_budget(const MemoryFlags& flags);
// The limits of the file with those of the flags on top. Errors: kInvalidArgument naming the flag,
// or the file and its field.
Result<Limits> read_limits(const LimitFlags& flags);

// Those of --pin, each "SITE=CANDIDATE". Errors: kInvalidArgument.
Result<Pins> parse_pins(const std::vector<std::string>& texts);

}  // namespace bitalloc::cli
