#include "ops/cli/validation.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "ops/cli/answers.h"
#include "ops/cli/output.h"
#include "ops/cli/search_inputs.h"

namespace bitalloc::cli {
namespace {

// Σ numerator / Σ denominator over sequences.
struct Ratio {
  double value = 0;
  std::optional<double> standard_error;
};

Ratio ratio(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  double numerator = 0;
  double denominator = 0;
  int used = 0;
  for (size_t i = 0; i < numerators.size(); ++i) {
    numerator += numerators[i];
    denominator += denominators[i];
    used += denominators[i] > 0 ? 1 : 0;
  }
  Ratio result;
  result.value = numerator / denominator;
  if (used < 2) return result;
  double squares = 0;
  for (size_t i = 0; i < numerators.size(); ++i) {
    const double residual = numerators[i] - result.value * denominators[i];
    squares += residual * residual;
  }
  result.standard_error = std::sqrt(squares * used / (used - 1)) / denominator;
  return result;
}

// Positions whose next token is scored, and positions scored, of every sequence.
struct Counts {
  std::vector<double> scored;
  std::vector<double> predicted;
};

Counts count_positions(const TokenSet& tokens) {
  Counts counts;
  for (int64_t s = 0; s < tokens.sequences; ++s) {
    const uint8_t* mask = tokens.mask.data() + s * tokens.length;
    int64_t scored = 0;
    int64_t predicted = 0;
    for (int64_t t = 0; t < tokens.length; ++t) {
      scored += mask[t];
      if (t + 1 < tokens.length) predicted += mask[t] & mask[t + 1];
    }
    counts.scored.push_back(static_cast<double>(scored));
    counts.predicted.push_back(static_cast<double>(predicted));
  }
  return counts;
}

// [sequences] of one metric of one configuration.
std::vector<double> metric_sums(const Checkpoint& validation, int64_t row, int64_t metric) {
  const SearchSpec& spec = validation.spec;
  std::vector<double> sums(static_cast<size_t>(spec.sequences), 0.0);
  for (const UnitId& unit : validation.table.units()) {
    if (unit.kind != UnitKind::kScore || row < unit.row_begin || row >= unit.row_end) continue;
    const UnitResult& result = validation.table.result(unit);
    const int64_t size = spec.batch_size(unit.batch);
    const int64_t first = ((row - unit.row_begin) * kValidationMetrics + metric) * size;
    for (int64_t i = 0; i < size; ++i) {
      sums[static_cast<size_t>(unit.batch.value * spec.batch_sequences + i)] =
          result.sums[static_cast<size_t>(first + i)];
    }
  }
  return sums;
}

double effective_bits_of(const SearchSpec& spec, const Configuration& configuration) {
  double bits = 0;
  double width = 0;
  for (size_t i = 0; i < spec.sites.size(); ++i) {
    const auto elements = static_cast<double>(spec.sites[i].k_width + spec.sites[i].v_width);
    bits += elements * candidate_bits(spec.sites[i], configuration.candidates[i]);
    width += elements;
  }
  return bits / width;
}

Json or_null(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json();
}

}  // namespace

Result<SearchSpec> configurations_spec(const Checkpoint& search,
                                       std::vector<Configuration> configurations,
                                       const TokenSet& tokens, int64_t batch_sequences) {
  SearchSpec spec = search.spec;
  spec.kind = JobKind::kValidation;
  spec.candidates.clear();
  spec.configurations = std::move(configurations);
  if (search.spec.needs_calibration()) spec.amax = search.table.amax();
  spec.calibration_sequences = 0;
  spec.calibration_length = 0;
  spec.calibration_sha256.clear();
  spec.sequences = tokens.sequences;
  spec.length = tokens.length;
  spec.tokens_sha256 = tokens_sha256(tokens);
  spec.batch_sequences = batch_sequences;
  spec.sites_per_unit = 1;
  BA_RETURN_IF_ERROR(validate(spec));
  return spec;
}

Result<SearchSpec> validation_spec(const Checkpoint& search, const Json& assignment,
                                   const TokenSet& tokens) {
  std::vector<Configuration> configurations;
  const size_t sites = search.spec.sites.size();
  const auto uniform = [&](const Candidate& candidate) {
    return Configuration{candidate_name(candidate), std::vector<Candidate>(sites, candidate)};
  };
  configurations.push_back(uniform(Candidate{}));
  for (const Candidate& candidate : search.spec.candidates) {
    if (candidate != Candidate{}) configurations.push_back(uniform(candidate));
  }
  const double budget = budget_bits(assignment);
  Configuration chosen{fmt::format("assignment at {} bits", bits_text(budget)), {}};
  for (const Json& site : assignment.at("sites")) {
    BA_ASSIGN_OR_RETURN(const Candidate candidate,
                        parse_candidate(site.at("candidate").get<std::string>()));
    chosen.candidates.push_back(candidate);
  }
  configurations.push_back(chosen);
  BA_ASSIGN_OR_RETURN(
      SearchSpec spec,
      configurations_spec(search, std::move(configurations), tokens,
                          default_batch_sequences(tokens.length, tokens.sequences, "cpu")));
  spec.effective_bits = budget;
  return spec;
}

Json validation_rows(const Checkpoint& validation, const TokenSet& tokens) {
  const SearchSpec& spec = validation.spec;
  const Counts counts = count_positions(tokens);
  Json rows = Json::array();
  for (int64_t row = 0; row < spec.num_rows(); ++row) {
    const Configuration& configuration = spec.configurations[static_cast<size_t>(row)];
    const Ratio kl = ratio(metric_sums(validation, row, 0), counts.scored);
    const Ratio nll = ratio(metric_sums(validation, row, 1), counts.predicted);
    const Ratio top1 = ratio(metric_sums(validation, row, 2), counts.scored);
    const double perplexity = std::exp(nll.value);
    std::optional<double> perplexity_error;
    if (nll.standard_error.has_value()) perplexity_error = perplexity * *nll.standard_error;
    rows.push_back({{"configuration", configuration.name},
                    {"effective_bits", effective_bits_of(spec, configuration)},
                    {"kl_nats_per_token", kl.value},
                    {"perplexity", perplexity},
                    {"top1_agreement", top1.value},
                    {"tasks", Json::object()},
                    {"standard_error",
                     {{"kl_nats_per_token", or_null(kl.standard_error)},
                      {"perplexity", or_null(perplexity_error)},
                      {"top1_agreement", or_null(top1.standard_error)}}}});
  }
  return rows;
}

std::string validation_text(const Json& rows) {
  using Align = Table::Align;
  Table table({{"configuration"},
               {"bits", Align::kRight},
               {"KL nats/token", Align::kRight},
               {"± s.e.", Align::kRight},
               {"perplexity", Align::kRight},
               {"top-1 agreement", Align::kRight}});
  for (const Json& row : rows) {
    table.add({row.at("configuration"), bits_text(row.at("effective_bits")),
               nats_text(row.at("kl_nats_per_token")),
               nats_text(row.at("standard_error").at("kl_nats_per_token")),
               fmt::format("{:.4f}", row.at("perplexity").get<double>()),
               fmt::format("{:.2f} %", 100 * row.at("top1_agreement").get<double>())});
  }
  return table.text();
}

}  // namespace bitalloc::cli
