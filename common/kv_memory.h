// How many bytes a KV cache takes in a serving engine: the budget that people have.
//
// The cache of a layer is paged: a sequence holds whole blocks of `block_tokens` tokens, as in
// vLLM, SGLang and TensorRT-LLM. A token takes, a KV head, the whole bytes of one row of K and one
// of V, block scales included. Under tensor parallelism a rank holds its share of the KV heads, or,
// when there are fewer heads than ranks, one of them (so heads are stored more than once). A layer
// with a sliding window keeps the blocks that the newest `window` tokens touch. Of a format that
// keeps tokens exact for a while, the most that are so at once on the way to `context` tokens are
// counted: a cache that holds them at the end only could not get there.
//
// Plain functions; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv_budget.h"
#include "common/search_spec.h"
#include "common/status.h"
#include "kernels/formats/format.h"

namespace bitalloc {

// Counts within their bounds, and ranks that can share the model's KV heads. Errors:
// kInvalidArgument naming "context", "sequences", "tp", "block_tokens" or "memory"; kUnsupported
// when the spec, made by an earlier release, does not say how many KV heads there are, and that
// matters: several ranks, or layers that are no sites.
Status validate(const KvLoad& load, const SearchSpec& spec);
Status validate(const KvBudget& budget, const SearchSpec& spec);

// Bytes of weights on one rank, served in bfloat16 and shared evenly; 0: the spec does not say.
int64_t weight_bytes(const ModelRef& model, int64_t ranks);
// The budget with `bytes` said: where it is one of a whole GPU, what the weights leave of it.
// Errors: kUnsupported when the spec does not say how many parameters there are, kInfeasible when
// the weights leave nothing ("memory"), and those of validate().
Result<KvBudget> cache_budget(const KvBudget& budget, const SearchSpec& spec);

// Tokens of cache that a layer holds for all sequences, whole blocks. `window`: tokens that a query
// of the layer sees, 0 for all.
int64_t kv_tokens(const KvLoad& load, int64_t window);

// Bytes of the layer's cache on one rank. REQUIRES: validate(load, spec) is OK.
int64_t kv_bytes(const ModelRef& model, const Site& site, const Candidate& candidate,
                 const KvLoad& load);

// Bytes on one rank of the layers that are no sites: they stay at bf16.
int64_t fixed_kv_bytes(const SearchSpec& spec, const KvLoad& load);

// Bytes on one rank of a whole assignment, `choice`: [sites]; fixed_kv_bytes() included.
int64_t assignment_kv_bytes(const SearchSpec& spec, const std::vector<Candidate>& choice,
                            const KvLoad& load);

// The largest count of sequences (context kept), and the longest context (sequences kept) up to
// `kMaxContext`, whose cache fits into `bytes` on a rank; 0: none does.
int64_t most_sequences(const SearchSpec& spec, const std::vector<Candidate>& choice,
                       const KvBudget& budget);
int64_t longest_context(const SearchSpec& spec, const std::vector<Candidate>& choice,
                        const KvBudget& budget);
inline constexpr int64_t kMaxContext = int64_t{1} << 24;

}  // namespace bitalloc
