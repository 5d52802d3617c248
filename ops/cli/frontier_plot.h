// The frontier as a picture: one step line, budgets to the right, nats upwards on a logarithmic
// axis.
#pragma once

#include <string>

#include "common/json.h"

namespace bitalloc::cli {

// An SVG document of the answer of frontier_json() (solver/allocate.h): the best objective for
// every budget as a step line (as a broken line through extreme points when only those are known),
// the band of 1.96 standard errors where there are errors, a labelled mark at every knee. `title`
// is text. Objectives of 0 have no logarithm: the line leaves the picture at its lower edge.
std::string frontier_svg(const Json& answer, const std::string& title);

}  // namespace bitalloc::cli
