// Strong types for the numbers and names that could be swapped by accident.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace bitalloc {

// An integer with a name. `Tag` makes each use its own type.
template <typename Tag, typename Value = int64_t>
struct StrongInt {
  Value value = 0;

  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Value v) : value(v) {}
  constexpr auto operator<=>(const StrongInt&) const = default;
};

using SiteIndex = StrongInt<struct SiteIndexTag>;            // position in SearchSpec::sites
using CandidateIndex = StrongInt<struct CandidateIndexTag>;  // position in SearchSpec::candidates
using BatchIndex = StrongInt<struct BatchIndexTag>;          // which batch of sequences
using Fence = StrongInt<struct FenceTag>;                    // grows with every lease of a search

// A name with a type.
template <typename Tag>
struct StrongString {
  std::string value;

  StrongString() = default;
  explicit StrongString(std::string v) : value(std::move(v)) {}
  auto operator<=>(const StrongString&) const = default;
};

using SearchId = StrongString<struct SearchIdTag>;        // [A-Za-z0-9._-]{1,128}
using WorkerEpoch = StrongString<struct WorkerEpochTag>;  // one life of one worker process

}  // namespace bitalloc

template <typename Tag, typename Value>
struct std::hash<bitalloc::StrongInt<Tag, Value>> {
  size_t operator()(const bitalloc::StrongInt<Tag, Value>& x) const {
    return std::hash<Value>()(x.value);
  }
};

template <typename Tag>
struct std::hash<bitalloc::StrongString<Tag>> {
  size_t operator()(const bitalloc::StrongString<Tag>& x) const {
    return std::hash<std::string>()(x.value);
  }
};
