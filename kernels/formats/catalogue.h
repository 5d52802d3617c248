// What formats there are, and what parameters each of them has: the one table behind names, costs
// and `bitalloc formats`. A new format is a row here (README.md of kernels/ says how).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/formats/format.h"

namespace bitalloc {

// A field of Format as text. Value 0 is the default wherever a kind has the parameter.
struct Parameter {
  const char* name;
  uint32_t (*get)(const Format& format);
  void (*set)(Format& format, uint32_t value);
  std::span<const char* const> values;  // names of 0, 1, …; empty: a number
};

// A parameter of a kind.
struct ParameterUse {
  const Parameter* parameter;
  std::vector<uint32_t> numbers = {};  // of a number: the default, then what else is allowed
  uint32_t most = 0;                   // of a number: all up to it are allowed, from 1
};

struct FormatRow {
  FormatKind kind;
  const char* name;
  std::vector<ParameterUse> parameters;  // in the order of canonical names
  double (*bits)(const Format& format, int64_t head_dim);
  int64_t head_dim_multiple;  // head_dim must be a multiple of this
  const char* granularity;    // what shares a scale
  const char* served_by;      // engines that store it
  const char* description;
};

const std::vector<FormatRow>& format_catalogue();
const FormatRow& catalogue_row(FormatKind kind);
// For people: "encoding=served|modelopt", the default first.
std::vector<std::string> parameter_choices(const FormatRow& row);
bool has_parameter(FormatKind kind, const std::string& name);

}  // namespace bitalloc
