#include "ops/cli/limit_flags.h"

#include <fmt/format.h>

#include "common/files.h"

namespace bitalloc::cli {
namespace {

constexpr uint64_t kMaxFileBytes = 16 << 20;

Result<int64_t> parse_size(const std::string& text, const std::string& flag) {
  std::string bytes = text;
  std::string wrong;
  try {
    wrong = CLI::AsSizeValue(/*kb_is_1000=*/true)(bytes);
  } catch (const CLI::Error& error) {
    wrong = error.what();
  }
  const bool number = wrong.empty() && !bytes.empty() && bytes.size() <= 16 &&
                      bytes.find_first_not_of("0123456789") == std::string::npos;
  const int64_t value = number ? std::stoll(bytes) : 0;
  if (value > 0) return value;
  return invalid_argument(fmt::format("{}: '{}' is not a size", flag, text), flag, "e.g. 8GiB");
}

Result<Json> read_json(const std::string& file, const std::string& flag) {
  Result<std::string> text = read_file(file, kMaxFileBytes);
  if (!text.ok()) {
    return invalid_argument(fmt::format("{}: {}", flag, text.error().message), flag);
  }
  return parse_json(*text, file);
}

// An assignment as `assignment --json` prints it, or just {site: candidate}.
Result<std::map<std::string, std::string>> deployed_candidates(const std::string& file) {
  BA_ASSIGN_OR_RETURN(Json json, read_json(file, "--deployed"));
  if (json.contains("refined")) {  // what `refine --json` prints
    BA_ASSIGN_OR_RETURN(json, json_field<Json>(Json(json), "refined", file));
  }
  std::map<std::string, std::string> candidates;
  if (json.contains("sites")) {
    BA_ASSIGN_OR_RETURN(const Json sites, json_field<Json>(json, "sites", file));
    for (const Json& site : sites) {
      BA_ASSIGN_OR_RETURN(const auto name, json_field<std::string>(site, "site", file + ".sites"));
      BA_ASSIGN_OR_RETURN(candidates[name],
                          json_field<std::string>(site, "candidate", file + ".sites"));
    }
    return candidates;
  }
  if (!json.is_object()) {
    return invalid_argument(fmt::format("{} is not an assignment", file), "--deployed",
                            "give what `bitalloc assignment ID --json` prints, or an object of "
                            "site: candidate");
  }
  for (const auto& [site, ignored] : json.items()) {
    BA_ASSIGN_OR_RETURN(candidates[site], json_field<std::string>(json, site, file));
  }
  return candidates;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else if (c != ' ') {
      parts.back() += c;
    }
  }
  return parts;
}

Status add_deployed(const LimitFlags& flags, Limits& limits) {
  if (flags.deployed.empty() && flags.max_changes < 0) return {};
  if (flags.deployed.empty() || flags.max_changes < 0) {
    return invalid_argument("--deployed FILE and --max-changes N go together",
                            flags.deployed.empty() ? "--deployed" : "--max-changes");
  }
  limits.deployed = Deployed{{}, flags.max_changes};
  BA_ASSIGN_OR_RETURN(limits.deployed->candidates, deployed_candidates(flags.deployed));
  return {};
}

// "SITE=CANDIDATE" of `flag`. Errors: kInvalidArgument.
Result<SiteRule> parse_site_rule(const std::string& text, const std::string& flag) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && equals + 1 < text.size()) {
    return SiteRule{text.substr(0, equals), text.substr(equals + 1)};
  }
  return invalid_argument(fmt::format("{}: '{}' is not SITE=CANDIDATE", flag, text), flag,
                          fmt::format("e.g. {} layers.0=bf16", flag));
}

}  // namespace

void add_memory_options(CLI::App* command, MemoryFlags& flags) {
  CLI::Option* memory =
      command->add_option("--memory", flags.memory,
                          "budget: bytes of KV cache on each rank, e.g. 8GiB (with --context)");
  CLI::Option* gpu_memory =
      command
          ->add_option("--gpu-memory", flags.gpu_memory,
                       "budget: bytes of a whole GPU, e.g. 80GB; the cache gets what bf16 weights "
                       "leave (with --context)")
          ->excludes(memory);
  command->add_option("--gpu-utilization", flags.utilization, "share of --gpu-memory to use")
      ->needs(gpu_memory)
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command->add_option("--context", flags.context, "tokens a sequence that the memory must hold")
      ->check(CLI::PositiveNumber);
  command->add_option("--serve-tp", flags.ranks, "ranks that share weights and cache when served")
      ->capture_default_str();
  command->add_option("--block-tokens", flags.block_tokens, "tokens a block of the paged cache")
      ->capture_default_str();
}

void add_limit_options(CLI::App* command, LimitFlags& flags) {
  add_memory_options(command, flags.memory);
  command->add_option("--sequences", flags.memory.sequences, "at the same time in the memory")
      ->check(CLI::PositiveNumber);
  command->add_option("--exclude", flags.exclude, "SITE=CANDIDATE not to take (*: every site)")
      ->allow_extra_args(false);
  command->add_option("--same", flags.same, "sites, comma-separated, that take one candidate")
      ->allow_extra_args(false);
  command->add_flag("--k-not-below-v", flags.k_not_below_v, "K gets at least as many bits as V");
  command->add_option("--max-formats", flags.max_formats, "different candidates at most")
      ->check(CLI::Range(1, 1'000));
  command->add_option("--deployed", flags.deployed,
                      "file of the assignment that is served now (with --max-changes)");
  command->add_option("--max-changes", flags.max_changes, "sites that may differ from --deployed")
      ->check(CLI::Range(0, 1'000'000));
  command->add_option("--limits", flags.file, "all of these and costs, as a JSON file");
}

Result<std::optional<KvBudget>> memory_budget(const MemoryFlags& flags) {
  const bool whole_gpu = !flags.gpu_memory.empty();
  if (!flags.asked()) {
    if (flags.context == 0) return std::optional<KvBudget>();
    return invalid_argument("--context is of a cache in memory, and there is no such budget",
                            "--context", "add --memory or --gpu-memory");
  }
  if (flags.context == 0) {
    return invalid_argument(fmt::format("{} needs --context: tokens a sequence",
                                        whole_gpu ? "--gpu-memory" : "--memory"),
                            "--context", "e.g. --memory 8GiB --context 32768 --sequences 16");
  }
  KvBudget budget;
  if (whole_gpu) {
    BA_ASSIGN_OR_RETURN(const int64_t all, parse_size(flags.gpu_memory, "--gpu-memory"));
    budget.gpu_bytes = static_cast<int64_t>(static_cast<double>(all) * flags.utilization);
  } else {
    BA_ASSIGN_OR_RETURN(budget.bytes, parse_size(flags.memory, "--memory"));
  }
  budget.load.context = flags.context;
  budget.load.sequences = std::max<int64_t>(1, flags.sequences);
  budget.load.tensor_parallel = flags.ranks;
  budget.load.block_tokens = flags.block_tokens;
  return std::optional(budget);
}

Result<Pins> parse_pins(const std::vector<std::string>& texts) {
  Pins pins;
  for (const std::string& text : texts) {
    BA_ASSIGN_OR_RETURN(const SiteRule pin, parse_site_rule(text, "--pin"));
    if (!pins.emplace(pin.site, pin.candidate).second) {
      return invalid_argument(fmt::format("--pin: '{}' is pinned twice", pin.site), "--pin");
    }
  }
  return pins;
}

Result<Limits> read_limits(const LimitFlags& flags) {
  Limits limits;
  if (!flags.file.empty()) {
    BA_ASSIGN_OR_RETURN(const Json json, read_json(flags.file, "--limits"));
    BA_ASSIGN_OR_RETURN(limits, limits_from_json(json, flags.file));
  }
  BA_ASSIGN_OR_RETURN(const auto memory, memory_budget(flags.memory));
  if (memory) limits.memory = memory;
  if (flags.memory.sequences > 0 && !limits.memory) {
    return invalid_argument("--sequences is of a cache in memory, and there is no such budget",
                            "--sequences", "add --memory or --gpu-memory, and --context");
  }
  for (const std::string& text : flags.exclude) {
    BA_ASSIGN_OR_RETURN(SiteRule rule, parse_site_rule(text, "--exclude"));
    limits.exclude.push_back(std::move(rule));
  }
  for (const std::string& text : flags.same) limits.same.push_back(split(text));
  limits.k_not_below_v |= flags.k_not_below_v;
  if (flags.max_formats > 0) limits.max_formats = flags.max_formats;
  BA_RETURN_IF_ERROR(add_deployed(flags, limits));
  return limits;
}

}  // namespace bitalloc::cli
