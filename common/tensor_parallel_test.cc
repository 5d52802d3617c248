// Which models can be cut: heads and KV heads of published ones.
#include "common/tensor_parallel.h"

#include <gtest/gtest.h>

namespace bitalloc {
namespace {

ModelConfig heads(int64_t num_heads, int64_t num_kv_heads) {
  ModelConfig config;
  config.num_heads = num_heads;
  config.num_kv_heads = num_kv_heads;
  return config;
}

bool can_be_cut(const ModelConfig& config, int ranks) {
  return check_tensor_parallel(config, ranks, "--tp").ok();
}

TEST(TensorParallel, HeadsMustDivide) {
  for (const int ranks : {1, 2, 4, 8, 16, 32})
    EXPECT_TRUE(can_be_cut(heads(32, 8), ranks)) << ranks;
  for (const int ranks : {3, 5, 6, 12, 64}) EXPECT_FALSE(can_be_cut(heads(32, 8), ranks)) << ranks;
  EXPECT_TRUE(can_be_cut(heads(9, 3), 3));  // SmolLM2-135M
  EXPECT_TRUE(can_be_cut(heads(9, 3), 9));
  EXPECT_FALSE(can_be_cut(heads(9, 3), 2));
  EXPECT_FALSE(can_be_cut(heads(12, 2), 3));  // heads divide, KV heads do not
}

TEST(TensorParallel, TheRefusalNamesTheNumbers) {
  const Status refused = check_tensor_parallel(heads(12, 2), 3, "--tp");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().field, "--tp");
  EXPECT_EQ(refused.error().message,
            "a model of 12 attention heads and 2 KV heads cannot be cut into 3 shards");
  EXPECT_EQ(refused.error().hint, "possible are 1, 2, 4, 6, 12");
  EXPECT_EQ(check_tensor_parallel(heads(12, 2), 0, "--tp").error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitalloc
