#include "ops/cli/confidence_text.h"

#include <fmt/format.h>

#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace {

using Align = Table::Align;

std::string percent(const Json& share) {
  return fmt::format("{:.3g} %", 100 * share.get<double>());
}

std::string heading(const Json& confidence) {
  const Json& interval = confidence.at("objective_interval");
  std::string text = fmt::format(
      "{} resamples of {} sequences: summed KL of this assignment {} … {} nats a token ({}); "
      "expect {} "
      "more on other text, for having been picked on this",
      confidence.at("resamples").get<int>(), confidence.at("sequences").get<int64_t>(),
      nats_text(interval.at(0)), nats_text(interval.at(1)),
      percent(confidence.at("interval_level")), nats_text(confidence.at("selection_bias_kl_nats")));
  if (confidence.at("resamples") < confidence.at("resamples_asked")) {
    text += fmt::format("\ntime ran out: {} resamples were asked for",
                        confidence.at("resamples_asked").get<int>());
  }
  return text;
}

std::string undecided_text(const Json& confidence) {
  const size_t sites = confidence.at("stability").size();
  const Json& undecided = confidence.at("undecided");
  std::string text =
      fmt::format("{} of {} sites keep their candidate in {} of the resamples or more",
                  sites - undecided.size(), sites, percent(confidence.at("threshold")));
  if (undecided.empty()) return text;
  Table table({{"undecided site"},
               {"candidate"},
               {"kept", Align::kRight},
               {"runner-up"},
               {"taken", Align::kRight},
               {"costs more", Align::kRight},
               {"± s.e.", Align::kRight},
               {"more batches", Align::kRight}});
  for (const Json& site : undecided) {
    const Json& batches = site.at("more_batches");
    table.add({site.at("site"), site.at("candidate"), percent(site.at("stability")),
               site.at("runner_up"), percent(site.at("runner_up_share")),
               nats_text(site.at("difference_kl_nats")),
               nats_text(site.at("difference_standard_error")),
               batches.is_null() ? "no end" : batches.dump()});
  }
  return text + "\n\n" + table.text();
}

std::string violations_text(const Json& violations) {
  if (violations.empty()) return "";
  Table table({{"more bits score worse at"},
               {"candidate"},
               {"than"},
               {"by", Align::kRight},
               {"± s.e.", Align::kRight}});
  for (const Json& one : violations) {
    table.add({one.at("site"), one.at("candidate"), one.at("scores_worse_than"),
               nats_text(one.at("excess_kl_nats")), nats_text(one.at("standard_error"))});
  }
  return "\n\n" + table.text();
}

}  // namespace

std::string confidence_text(const Json& confidence) {
  if (confidence.contains("note")) return confidence.at("note");
  return heading(confidence) + "\n" + undecided_text(confidence) +
         violations_text(confidence.at("monotonicity_violations"));
}

}  // namespace bitalloc::cli
