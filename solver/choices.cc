#include "solver/choices.h"

#include <optional>

namespace bitalloc {
namespace {

// "layers.0" fits "model.layers.0.self_attn", but not "model.layers.01.self_attn".
bool fits(const std::string& site, const std::string& pin) {
  return !pin.empty() && ("." + site + ".").find("." + pin + ".") != std::string::npos;
}

Result<size_t> find_site(const SearchSpec& spec, const std::string& pin) {
  std::optional<size_t> found;
  for (size_t i = 0; i < spec.sites.size(); ++i) {
    if (spec.sites[i].name == pin) return i;
    if (!fits(spec.sites[i].name, pin)) continue;
    if (found) {
      return invalid_argument(fmt::format("pin '{}' fits several sites, e.g. {} and {}", pin,
                                          spec.sites[*found].name, spec.sites[i].name),
                              "pins", "name one site");
    }
    found = i;
  }
  if (found) return *found;
  return invalid_argument(fmt::format("pin '{}' fits no site of the search", pin), "pins",
                          fmt::format("sites are named like {}", spec.sites.front().name));
}

Result<Choice> pinned_choice(const std::vector<Choice>& choices, const std::string& name) {
  BA_ASSIGN_OR_RETURN(const Candidate wanted, parse_candidate(name));
  std::string known;
  for (const Choice& choice : choices) {
    if (choice.candidate == wanted) return choice;
    known += candidate_name(choice.candidate) + ", ";
  }
  if (wanted == Candidate{}) return Choice{wanted, Score{0, 0, 0, 0.0}, -1};
  return invalid_argument(fmt::format("'{}' was not scored in this search", name), "pins",
                          fmt::format("pin one of {}bf16", known));
}

std::vector<Choice> scored_choices(const SearchSpec& spec, const ScoreTable& table, size_t site) {
  std::vector<Choice> choices;
  for (size_t column = 0; column < spec.candidates.size(); ++column) {
    choices.push_back(
        {spec.candidates[column],
         table.score(static_cast<int64_t>(site), CandidateIndex(static_cast<int64_t>(column))),
         static_cast<int>(column)});
  }
  return choices;
}

bool any_unscored(const std::vector<Choice>& choices) {
  return std::any_of(choices.begin(), choices.end(),
                     [](const Choice& choice) { return choice.score.tokens == 0; });
}

}  // namespace

Result<std::vector<SiteChoices>> make_choices(const SearchSpec& spec, const ScoreTable& table,
                                              const Pins& pins, bool skip_unscored) {
  std::vector<SiteChoices> all;
  for (size_t site = 0; site < spec.sites.size(); ++site) {
    all.push_back({site, scored_choices(spec, table, site)});
    if (!skip_unscored && any_unscored(all.back().choices)) {
      return unavailable(fmt::format("site {} has no score yet", spec.sites[site].name), "id");
    }
  }
  for (const auto& [pin, name] : pins) {
    BA_ASSIGN_OR_RETURN(const size_t site, find_site(spec, pin));
    BA_ASSIGN_OR_RETURN(Choice choice, pinned_choice(all[site].choices, name));
    all[site].choices = {std::move(choice)};
  }
  std::erase_if(all, [&](const SiteChoices& site) {
    return any_unscored(site.choices) && site.choices.front().column >= 0;
  });
  if (all.empty()) return unavailable("no site has a score yet", "id");
  return all;
}

Problem make_problem(const SearchSpec& spec, const std::vector<SiteChoices>& choices,
                     bool complete) {
  Problem problem;
  for (const SiteChoices& one : choices) {
    const Site& site = spec.sites[one.site];
    problem.width.push_back(static_cast<double>(site.k_width + site.v_width));
    auto& bits = problem.bits.emplace_back();
    auto& score = problem.score.emplace_back();
    for (const Choice& choice : one.choices) {
      bits.push_back(candidate_bits(site, choice.candidate));
      score.push_back(complete ? choice.score.kl_sum_nats : choice.score.kl_nats_per_token);
    }
  }
  return problem;
}

Samples make_samples(const ScoreTable& table, const std::vector<SiteChoices>& choices) {
  BA_CHECK(table.complete(), "sites have seen different sequences");
  Samples samples;
  samples.tokens = table.sequences(0, CandidateIndex(0)).tokens;
  for (const SiteChoices& one : choices) {
    auto& sums = samples.sums.emplace_back();
    for (const Choice& choice : one.choices) {
      if (choice.column < 0) {
        sums.emplace_back(samples.tokens.size(), 0.0);
        continue;
      }
      sums.push_back(
          table.sequences(static_cast<int64_t>(one.site), CandidateIndex(choice.column)).sums);
    }
  }
  return samples;
}

}  // namespace bitalloc
