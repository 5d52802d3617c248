// Messages without a library: ops/gpu_check.sh builds the kernels where there is none.
#pragma once

#include <sstream>
#include <string>

namespace bitalloc {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <typename List>
std::string joined(const List& list, const char* separator) {
  std::ostringstream text;
  bool first = true;
  for (const auto& one : list) {
    text << (first ? "" : separator) << one;
    first = false;
  }
  return text.str();
}

}  // namespace bitalloc
