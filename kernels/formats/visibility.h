// Which tokens of a cache a query sees as they were stored, and which as they were computed.
//
// Caches with few bits keep their newest tokens exact for a while, and answer the queries of a
// prompt before they store it. Token i is appended, then its query attends to tokens 0 … i, then
// the cache stores what its rule says:
//   all            every token is stored before any query sees it, the query's own included: vLLM,
//                  SGLang, TensorRT-LLM, and ModelOpt's fake quantization
//   window         the R newest tokens, the query's own included, are exact
//   kivi           KIVI (models/llama_kivi.py): keys are stored R at a time, once R exact ones are
//                  there; values one at a time, R exact ones stay
//   after_prefill  transformers 5.24's QuantizedCache: the prompt of P tokens is stored once its
//                  queries are answered, then R tokens at a time
// With a prompt of P tokens the first P queries see exact tokens only, whatever the rule but `all`.
//
// Pure functions.
#pragma once

#include <cstdint>

namespace bitalloc {

enum class See { kAll, kWindow, kKivi, kAfterPrefill };

enum class Side { kK, kV };

struct Visibility {
  See see = See::kAll;
  int64_t window = 128;  // R, at least 1
  int64_t prefill = 0;   // P
};

// How many of the first tokens the query of token i sees as stored; it sees the others up to its
// own as they were computed.
int64_t stored_tokens(const Visibility& rule, Side side, int64_t i);

// Exact tokens in a cache of `context` tokens, after the last one was appended and what was due was
// stored.
int64_t exact_tokens(const Visibility& rule, Side side, int64_t context);

}  // namespace bitalloc
