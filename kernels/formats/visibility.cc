#include "kernels/formats/visibility.h"

#include <algorithm>

namespace bitalloc {

int64_t stored_tokens(const Visibility& rule, Side side, int64_t i) {
  if (rule.see == See::kAll) return i + 1;
  if (i < rule.prefill) return 0;
  const int64_t window = rule.window;
  switch (rule.see) {
    case See::kWindow:
      return std::max<int64_t>(0, i + 1 - window);
    case See::kKivi:
      return side == Side::kK ? i / window * window : std::max<int64_t>(0, i - window);
    default:
      return rule.prefill + (i - rule.prefill) / window * window;
  }
}

int64_t exact_tokens(const Visibility& rule, Side side, int64_t context) {
  const int64_t window = rule.window;
  switch (rule.see) {
    case See::kWindow:
      return std::min(context, window);
    case See::kKivi:
      return side == Side::kK ? context % window : std::min(context, window);
    case See::kAfterPrefill:
      return context <= rule.prefill ? 0 : (context - rule.prefill) % window;
    default:
      return 0;
  }
}

}  // namespace bitalloc
