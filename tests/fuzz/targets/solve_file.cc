// The instances of `bitalloc solve`: parsing and the check of the problem and its constraints, not
// the solving.
#include "solver/solve_file.h"

#include "tests/fuzz/target.h"

bool bitalloc::fuzz::accepts(std::string_view input) {
  const auto file = parse_solve_file(input);
  if (!file.ok()) {
    BA_CHECK(!file.error().message.empty(), "an error without a message");
    return false;
  }
  BA_CHECK(!file->budgets.empty() || !constraint_names(file->constraints).empty(), "no question");
  BA_CHECK(!file->problem.width.empty(), "empty");
  BA_CHECK(file->problem.bits.size() == file->problem.width.size() &&
               file->problem.score.size() == file->problem.width.size(),
           "sizes");
  return true;
}
