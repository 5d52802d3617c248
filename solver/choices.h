// What every site of a search may take, out of its score table: the bridge between the types of
// common/ and the solver's problem.
//
// Pure functions; thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/score_table.h"
#include "common/search_spec.h"
#include "solver/problem.h"
#include "solver/samples.h"

namespace bitalloc {

// Site → candidate that it must take. A site is its name or any run of whole dotted parts of it
// that fits one site only ("layers.0" for "model.layers.0.self_attn"). `bf16` is always allowed: it
// is the reference and costs no nats, whether or not it was among the candidates.
using Pins = std::map<std::string, std::string>;

struct Choice {
  Candidate candidate;
  Score score;
  int column = -1;  // of the table; -1: the reference, which costs nothing by definition
};

struct SiteChoices {
  size_t site = 0;  // index into the spec's sites
  std::vector<Choice> choices;
};

// By site; of a table with gaps either an error or, with `skip_unscored`, the sites that have
// scores. Errors: kUnavailable for a site without a score (for all of them, when skipping);
// kInvalidArgument (field "pins") for a pin that fits no or several sites or was not scored.
Result<std::vector<SiteChoices>> make_choices(const SearchSpec& spec, const ScoreTable& table,
                                              const Pins& pins, bool skip_unscored);

// Sums over tokens are what was measured, so they are what is minimized; an unfinished search
// (`complete` false) has seen another number of tokens at every site, so there it is the means.
Problem make_problem(const SearchSpec& spec, const std::vector<SiteChoices>& choices,
                     bool complete);

// REQUIRES: table.complete(), so that every site has seen the same sequences.
Samples make_samples(const ScoreTable& table, const std::vector<SiteChoices>& choices);

}  // namespace bitalloc
