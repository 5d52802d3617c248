// For tests and benches: all that the numerics of the catalogue can be told.
#pragma once

#include <string>
#include <vector>

#include "kernels/formats/catalogue.h"

namespace bitalloc {

// Canonical names of every kind with every value of every parameter that its numerics know, one at
// a time. Rotation and visibility are not among them: they happen outside.
inline std::vector<std::string> every_variant() {
  std::vector<std::string> names;
  for (const FormatRow& row : format_catalogue()) {
    names.push_back(row.name);
    for (const ParameterUse& use : row.parameters) {
      const std::string parameter = use.parameter->name;
      if (parameter == "rotate" || parameter == "see" || use.most > 0) continue;
      const auto add = [&](uint32_t value) {
        Format format;
        format.kind = row.kind;
        use.parameter->set(format, value);
        names.push_back(format_name(format));
      };
      for (uint32_t i = 1; i < use.parameter->values.size(); ++i) add(i);
      for (size_t i = 1; i < use.numbers.size(); ++i) add(use.numbers[i]);
    }
  }
  return names;
}

}  // namespace bitalloc
