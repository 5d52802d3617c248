#include "solver/confidence_json.h"

#include <algorithm>

#include "solver/validation_rows.h"

namespace bitalloc {
namespace {

std::string site_name(const ConfidenceQuestion& question, size_t site) {
  return question.spec.sites[question.choices[site].site].name;
}

std::string name_of(const ConfidenceQuestion& question, size_t site, int choice) {
  return candidate_name(question.choices[site].choices[static_cast<size_t>(choice)].candidate);
}

Json undecided_json(const ConfidenceQuestion& question, const Confidence& found,
                    const Undecided& site) {
  Json batches;
  if (site.more_sequences) {
    const int64_t a_batch = question.spec.batch_sequences;
    batches = (*site.more_sequences + a_batch - 1) / a_batch;
  }
  return {{"site", site_name(question, site.site)},
          {"candidate", name_of(question, site.site, question.picked[site.site])},
          {"stability", found.stability[site.site]},
          {"runner_up", name_of(question, site.site, site.runner_up)},
          {"runner_up_share", site.runner_up_share},
          {"difference_kl_nats", site.difference.value},
          {"difference_standard_error", optional_json(site.difference.standard_error)},
          {"more_sequences", site.more_sequences ? Json(*site.more_sequences) : Json()},
          {"more_batches", batches}};
}

Json violation_json(const ConfidenceQuestion& question, const Violation& violation) {
  return {{"site", site_name(question, violation.site)},
          {"candidate", name_of(question, violation.site, violation.more_bits)},
          {"bits", question.problem.bits[violation.site][violation.more_bits]},
          {"scores_worse_than", name_of(question, violation.site, violation.fewer_bits)},
          {"excess_kl_nats", violation.excess},
          {"standard_error", violation.standard_error}};
}

}  // namespace

Result<std::optional<ConfidenceOptions>> confidence_options(const Json& json,
                                                            const std::string& where) {
  BA_ASSIGN_OR_RETURN(const Json asked, json_field_or<Json>(json, "confidence", where, {}));
  if (asked.is_null() || asked == false) return std::optional<ConfidenceOptions>();
  ConfidenceOptions options;
  if (asked == true) return std::optional(options);
  const std::string field = where + ".confidence";
  if (!asked.is_object()) {
    return invalid_argument(field + " is neither true, false nor an object", field);
  }
  BA_ASSIGN_OR_RETURN(options.resamples,
                      json_field_or<int>(asked, "resamples", field, options.resamples));
  BA_ASSIGN_OR_RETURN(options.seed, json_field_or<uint64_t>(asked, "seed", field, options.seed));
  BA_ASSIGN_OR_RETURN(options.threshold,
                      json_field_or<double>(asked, "threshold", field, options.threshold));
  BA_RETURN_IF_ERROR(validate(options));
  return std::optional(options);
}

Json to_json(const ConfidenceOptions& options) {
  return {
      {"resamples", options.resamples}, {"seed", options.seed}, {"threshold", options.threshold}};
}

Result<Json> confidence_json(const ConfidenceQuestion& question) {
  const auto sequences =
      std::count_if(question.samples.tokens.begin(), question.samples.tokens.end(),
                    [](double tokens) { return tokens > 0; });
  if (sequences < 2) {
    return Json{{"sequences", sequences},
                {"note", "one sequence says nothing of others: no errors, no resamples"}};
  }
  BA_ASSIGN_OR_RETURN(const Confidence found,
                      confidence(question.problem, question.samples, question.effective_bits,
                                 question.picked, question.options));
  Json stability = Json::object();
  for (size_t i = 0; i < found.stability.size(); ++i) {
    stability[site_name(question, i)] = found.stability[i];
  }
  Json undecided = Json::array();
  for (const Undecided& site : found.undecided) {
    undecided.push_back(undecided_json(question, found, site));
  }
  Json violations = Json::array();
  for (const Violation& violation : found.violations) {
    violations.push_back(violation_json(question, violation));
  }
  return Json{{"sequences", sequences},
              {"resamples", found.resamples},
              {"resamples_asked", question.options.resamples},
              {"resamples_unproven", found.unproven},
              {"seed", question.options.seed},
              {"threshold", question.options.threshold},
              {"interval_level", question.options.interval_level},
              {"objective_interval", found.interval},
              {"selection_bias_kl_nats", found.selection_bias},
              {"stability", std::move(stability)},
              {"undecided", std::move(undecided)},
              {"monotonicity_violations", std::move(violations)}};
}

}  // namespace bitalloc
