// A set of the numbers 0 … size−1, one bit each and a tree of words above them: insert, erase and
// "the smallest member from here on" take one step a level (four levels for 10⁷ numbers).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace bitalloc {

class IndexSet {
 public:
  explicit IndexSet(size_t size = 0) {
    do {
      size = (size + kBits - 1) / kBits;
      levels_.emplace_back(size, uint64_t{0});
    } while (size > 1);
  }

  size_t count() const { return count_; }
  bool empty() const { return count_ == 0; }
  bool contains(size_t index) const {
    return (levels_[0][index / kBits] >> (index % kBits) & 1) != 0;
  }

  void insert(size_t index) {
    if (contains(index)) return;
    ++count_;
    for (auto& level : levels_) {
      uint64_t& word = level[index / kBits];
      const bool known_above = word != 0;
      word |= uint64_t{1} << (index % kBits);
      if (known_above) return;
      index /= kBits;
    }
  }

  void erase(size_t index) {
    if (!contains(index)) return;
    --count_;
    for (auto& level : levels_) {
      uint64_t& word = level[index / kBits];
      word &= ~(uint64_t{1} << (index % kBits));
      if (word != 0) return;
      index /= kBits;
    }
  }

  // The smallest member that is not below `from`.
  std::optional<size_t> first_from(size_t from) const {
    size_t position = from;
    for (size_t level = 0; level < levels_.size(); ++level) {
      const size_t word = position / kBits;
      if (word >= levels_[level].size()) return std::nullopt;
      const uint64_t rest = levels_[level][word] & (~uint64_t{0} << (position % kBits));
      if (rest != 0) return descend(level, word * kBits + std::countr_zero(rest));
      position = word + 1;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kBits = 64;

  size_t descend(size_t level, size_t position) const {
    while (level-- > 0) position = position * kBits + std::countr_zero(levels_[level][position]);
    return position;
  }

  std::vector<std::vector<uint64_t>> levels_;  // [0]: the members; above: words that are not zero
  size_t count_ = 0;
};

}  // namespace bitalloc
