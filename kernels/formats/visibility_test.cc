// The formulas against caches that are filled token by token.
#include "kernels/formats/visibility.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace bitalloc {
namespace {

// A cache as the packages keep it: how many tokens are stored, how many exact.
struct Cache {
  int64_t stored = 0;
  int64_t exact = 0;

  int64_t size() const { return stored + exact; }
  void store(int64_t count) {
    stored += count;
    exact -= count;
  }
};

// What is due after the queries of `now` new tokens were answered.
void flush(const Visibility& rule, Side side, bool is_prompt, Cache& cache) {
  switch (rule.see) {
    case See::kAll:
      return cache.store(cache.exact);
    case See::kWindow:
      return cache.store(std::max<int64_t>(0, cache.exact - rule.window));
    case See::kKivi:
      if (side == Side::kV) return cache.store(std::max<int64_t>(0, cache.exact - rule.window));
      return cache.store(cache.exact / rule.window * rule.window);
    case See::kAfterPrefill:
      if (is_prompt || cache.exact >= rule.window) cache.store(cache.exact);
  }
}

// stored_tokens of every query and, of every length from the prompt's, exact_tokens.
struct Filled {
  std::vector<int64_t> seen_stored;
  std::vector<int64_t> exact;
};

Filled fill(const Visibility& rule, Side side, int64_t length) {
  Cache cache;
  Filled filled;
  filled.exact.assign(static_cast<size_t>(rule.prefill), -1);
  if (rule.prefill > 0) {
    filled.seen_stored.assign(static_cast<size_t>(rule.prefill), 0);
    cache.exact = rule.prefill;
    flush(rule, side, true, cache);
  }
  filled.exact.push_back(cache.exact);
  while (cache.size() < length) {
    ++cache.exact;
    int64_t seen = cache.stored;
    // A window counts the query's own token: what falls out of it is stored before the query.
    if (rule.see == See::kWindow) seen = std::max(seen, cache.size() - rule.window);
    if (rule.see == See::kAll) seen = cache.size();
    filled.seen_stored.push_back(seen);
    flush(rule, side, false, cache);
    filled.exact.push_back(cache.exact);
  }
  return filled;
}

TEST(Visibility, EqualsACacheFilledTokenByToken) {
  for (const See see : {See::kAll, See::kWindow, See::kKivi, See::kAfterPrefill}) {
    for (const Side side : {Side::kK, Side::kV}) {
      for (const int64_t window : {1, 2, 5, 8}) {
        for (const int64_t prefill : {0, 1, 3, 8, 13}) {
          if (see == See::kAfterPrefill && prefill == 0) continue;
          if (see == See::kAll && prefill > 0) continue;
          const Visibility rule{see, window, prefill};
          const Filled filled = fill(rule, side, 40);
          for (int64_t i = 0; i < 40; ++i) {
            EXPECT_EQ(stored_tokens(rule, side, i), filled.seen_stored[i])
                << static_cast<int>(see) << " window " << window << " prompt " << prefill
                << " query " << i;
          }
          for (int64_t context = prefill; context <= 40; ++context) {
            EXPECT_EQ(exact_tokens(rule, side, context), filled.exact[context])
                << static_cast<int>(see) << " window " << window << " prompt " << prefill
                << " context " << context;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace bitalloc
