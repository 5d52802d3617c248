// Times what rests on the sums of every sequence, on a made-up search: allocate() alone, with
// confidence, and the frontier with its errors and knees.
//   confidence_bench [--sites 36] [--candidates 4] [--sequences 64] [--bits 7] [--resamples 200]
//                    [--seed 1] [--dump FILE [--id ID] [--units N] [--unordered]]
// Prints one JSON document of milliseconds. --dump writes the search as a checkpoint instead, for
// `bitalloc … --checkpoint FILE`: with --units only its first units have results, with --unordered
// more bits do not score better. --calibrate instead checks the estimate of how many more sequences
// decide a site: over the undecided sites of 40 searches, the quartiles of the stability that they
// have after so many more (of those that need at most 31 times what there is), beside the
// threshold.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <numeric>
#include <random>

#include "common/checkpoint.h"
#include "solver/allocate.h"
#include "solver/solve.h"

namespace bitalloc {
namespace {

struct Arguments {
  int sites = 36;
  int candidates = 4;
  int sequences = 64;
  double bits = 7;
  int resamples = 200;
  std::uint64_t seed = 1;
  std::string dump;
  std::string id = "made-up";
  std::size_t units = SIZE_MAX;
  bool unordered = false;
  bool calibrate = false;
};

// Pairs of formats, cheapest first.
std::vector<Candidate> cheapest_pairs(int count) {
  std::vector<Candidate> pairs;
  const Site square{"", 0, 1, 1};
  const FormatKind kinds[] = {FormatKind::kBf16, FormatKind::kFp8E4m3, FormatKind::kNvfp4};
  for (const FormatKind k : kinds) {
    for (const FormatKind v : kinds) pairs.push_back({{k}, {v}});
  }
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Candidate& a, const Candidate& b) {
    return candidate_bits(square, a) < candidate_bits(square, b);
  });
  pairs.resize(std::min(pairs.size(), static_cast<size_t>(count)));
  return pairs;
}

SearchSpec make_spec(const Arguments& arguments) {
  SearchSpec spec;
  spec.model = {"/models/made-up", "made-up", "llama", "w", "c", arguments.sites, 1000, 8, 128};
  spec.model.parameters = 3'000'000;
  for (int i = 0; i < arguments.sites; ++i) {
    spec.sites.push_back({"model.layers." + std::to_string(i) + ".self_attn", i, 1024, 1024});
  }
  spec.candidates = cheapest_pairs(arguments.candidates);
  spec.sequences = arguments.sequences;
  spec.length = 512;
  spec.batch_sequences = 4;
  spec.sites_per_unit = 4;
  spec.effective_bits = arguments.bits;
  spec.tokens_sha256 = std::string(64, 'a');
  return spec;
}

// Log-normal over sites, candidates and sequences; the mean falls by half with every bit.
ScoreTable make_table(const SearchSpec& spec, const Arguments& arguments) {
  std::mt19937_64 random(arguments.seed);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> mean(spec.sites.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    const double scale = normal(random);
    for (const Candidate& candidate : spec.candidates) {
      const double bits = candidate_bits(spec.sites[i], candidate);
      const double gain = arguments.unordered ? 6 : bits;
      mean[i].push_back(std::exp(scale + 0.3 * normal(random)) * std::exp2(-gain));
    }
  }
  ScoreTable table(spec);
  for (const UnitId& unit : table.units()) {
    if (static_cast<size_t>(table.units_done()) == arguments.units) break;
    UnitResult result{unit, {}, {}, {}};
    const auto sequences = static_cast<size_t>(spec.batch_size(unit.batch));
    result.tokens.assign(sequences, spec.length);
    for (int64_t row = unit.row_begin; row < unit.row_end; ++row) {
      for (const double one : mean[static_cast<size_t>(row)]) {
        for (size_t q = 0; q < sequences; ++q) {
          result.sums.push_back(static_cast<double>(spec.length) * one *
                                std::exp(0.5 * normal(random)));
        }
      }
    }
    table.add(result);
  }
  return table;
}

template <typename Work>
double milliseconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

int run(const Arguments& arguments) {
  const SearchSpec spec = make_spec(arguments);
  const Checkpoint search{arguments.id, spec, fingerprint(spec), make_table(spec, arguments)};
  if (!arguments.dump.empty()) {
    const Status written = write_checkpoint(search, arguments.dump);
    if (!written.ok()) std::cerr << written.error().message << "\n";
    return written.ok() ? 0 : 2;
  }
  AllocateOptions sure;
  sure.confidence = ConfidenceOptions{.resamples = arguments.resamples};
  Result<Json> answer = Json();
  const auto allocate_with = [&](const AllocateOptions& options) {
    answer = allocate(search.id, spec, search.fingerprint, search.table, arguments.bits, options);
  };
  Json out = {{"sites", spec.sites.size()},
              {"candidates", spec.candidates.size()},
              {"sequences", spec.sequences}};
  out["allocate_ms"] = milliseconds([&] { allocate_with({}); });
  out["confidence_ms"] = milliseconds([&] { allocate_with(sure); });
  if (!answer.ok()) {
    std::cerr << answer.error().message << "\n";
    return 2;
  }
  out["resamples"] = (*answer)["confidence"]["resamples"];
  out["undecided"] = (*answer)["confidence"]["undecided"].size();
  Result<Json> frontier = Json();
  out["frontier_ms"] =
      milliseconds([&] { frontier = frontier_json(search.id, spec, search.table); });
  out["frontier_points"] = (*frontier)["frontier"].size();
  out["frontier_exact"] = (*frontier)["exact"];
  std::cout << out.dump() << "\n";
  return 0;
}

// The same measurement with only the first sequences.
struct Shorter {
  Problem problem;
  Samples samples;
};

Shorter first_sequences(const Shorter& whole, size_t count) {
  Shorter result = whole;
  result.samples.tokens.resize(count);
  for (size_t i = 0; i < result.samples.sums.size(); ++i) {
    for (size_t j = 0; j < result.samples.sums[i].size(); ++j) {
      auto& sums = result.samples.sums[i][j];
      sums.resize(count);
      result.problem.score[i][j] = std::accumulate(sums.begin(), sums.end(), 0.0);
    }
  }
  return result;
}

Confidence confidence_of(const Shorter& measured, double bits) {
  Constraints constraints;
  constraints.effective_bits = bits;
  const auto solution = solve(measured.problem, constraints);
  BA_CHECK(solution.ok(), "a budget out of reach");
  return *confidence(measured.problem, measured.samples, constraints, solution->choice);
}

int calibrate(const Arguments& arguments) {
  constexpr int kSearches = 40;
  constexpr int kMostTimes = 32;
  std::vector<double> reached;
  int beyond = 0;
  for (int k = 0; k < kSearches; ++k) {
    Arguments large = arguments;
    large.seed = arguments.seed + static_cast<std::uint64_t>(k);
    large.sequences *= kMostTimes;
    const SearchSpec spec = make_spec(large);
    const ScoreTable table = make_table(spec, large);
    const auto choices = make_choices(spec, table, {}, false);
    const Shorter whole{make_problem(spec, *choices, true), make_samples(table, *choices)};
    const auto now = static_cast<size_t>(arguments.sequences);
    for (const Undecided& site : confidence_of(first_sequences(whole, now), large.bits).undecided) {
      const auto more = static_cast<size_t>(site.more_sequences.value_or(INT64_MAX / 2));
      if (now + more > whole.samples.tokens.size()) {
        ++beyond;
        continue;
      }
      const Confidence then = confidence_of(first_sequences(whole, now + more), large.bits);
      reached.push_back(then.stability[site.site]);
    }
  }
  std::sort(reached.begin(), reached.end());
  const auto at = [&](size_t quarter) { return reached[(reached.size() - 1) * quarter / 4]; };
  std::cout << Json{{"undecided", reached.size()},
                    {"beyond", beyond},
                    {"threshold", ConfidenceOptions().threshold},
                    {"stability_quartiles", {at(1), at(2), at(3)}}}
                   .dump()
            << "\n";
  return 0;
}

}  // namespace
}  // namespace bitalloc

int main(int argc, char** argv) {
  bitalloc::Arguments arguments;
  CLI::App app("Times errors, resamples and the frontier of a made-up search");
  app.add_option("--sites", arguments.sites)->check(CLI::PositiveNumber);
  app.add_option("--candidates", arguments.candidates)->check(CLI::PositiveNumber);
  app.add_option("--sequences", arguments.sequences)->check(CLI::PositiveNumber);
  app.add_option("--bits", arguments.bits);
  app.add_option("--resamples", arguments.resamples)->check(CLI::Range(1, 10'000));
  app.add_option("--seed", arguments.seed);
  CLI::Option* dump = app.add_option("--dump", arguments.dump);
  app.add_option("--id", arguments.id)->needs(dump);
  app.add_option("--units", arguments.units)->needs(dump);
  app.add_flag("--unordered", arguments.unordered)->needs(dump);
  app.add_flag("--calibrate", arguments.calibrate)->excludes(dump);
  CLI11_PARSE(app, argc, argv);
  return arguments.calibrate ? bitalloc::calibrate(arguments) : bitalloc::run(arguments);
}
