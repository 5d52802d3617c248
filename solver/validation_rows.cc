#include "solver/validation_rows.h"

#include <cmath>

#include "common/ratio.h"

namespace bitalloc {
namespace {

double bits_of(const SearchSpec& spec, const Configuration& configuration) {
  double bits = 0;
  double width = 0;
  for (size_t site = 0; site < spec.sites.size(); ++site) {
    const double elements =
        static_cast<double>(spec.sites[site].k_width + spec.sites[site].v_width);
    bits += elements * candidate_bits(spec.sites[site], configuration.candidates[site]);
    width += elements;
  }
  return bits / width;
}

Json configuration_json(const SearchSpec& spec, const ScoreTable& table, size_t row) {
  const int64_t index = static_cast<int64_t>(row);
  Json metrics = Json::array();
  for (const Metric metric :
       {Metric::kKl, Metric::kNll, Metric::kTop1Agreements, Metric::kNextTokens}) {
    metrics.push_back(score_json(table.score(index, CandidateIndex(0), metric)));
  }
  const Score kl = table.score(index, CandidateIndex(0));
  const Score agreement = table.score(index, CandidateIndex(0), Metric::kTop1Agreements);
  const Ratio nll = ratio(table.sequences(index, CandidateIndex(0), Metric::kNll).sums,
                          table.sequences(index, CandidateIndex(0), Metric::kNextTokens).sums);
  const double perplexity = std::exp(nll.value);
  std::optional<double> perplexity_error;  // of exp(x): the error of x times the derivative
  if (nll.standard_error) perplexity_error = *nll.standard_error * perplexity;
  return {{"row", index},
          {"configuration", spec.configurations[row].name},
          {"effective_bits", bits_of(spec, spec.configurations[row])},
          {"kl_nats_per_token", kl.kl_nats_per_token},
          {"perplexity", perplexity},
          {"top1_agreement", agreement.kl_nats_per_token},
          {"standard_error",
           {{"kl_nats_per_token", optional_json(kl.standard_error)},
            {"perplexity", optional_json(perplexity_error)},
            {"top1_agreement", optional_json(agreement.standard_error)}}},
          {"metrics", std::move(metrics)}};
}

}  // namespace

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json score_json(const Score& score) {
  return {{"kl_sum_nats", score.kl_sum_nats},
          {"tokens", score.tokens},
          {"kl_nats_per_token", score.kl_nats_per_token},
          {"standard_error", optional_json(score.standard_error)}};
}

Result<Json> validation_json(const std::string& id, const SearchSpec& spec,
                             const ScoreTable& table) {
  if (spec.kind != JobKind::kValidation) {
    return invalid_argument(fmt::format("'{}' is a search, not a validation", id), "id",
                            "`bitalloc assignment` shows its scores");
  }
  if (!table.complete()) {
    return unavailable(fmt::format("validation '{}' is not finished", id), "id");
  }
  Json rows = Json::array();
  for (size_t row = 0; row < spec.configurations.size(); ++row) {
    rows.push_back(configuration_json(spec, table, row));
  }
  return rows;
}

}  // namespace bitalloc
