// The memory plan against arithmetic by hand and against exhaustive search.
#include "worker/memory_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "common/bytes_text.h"
#include "worker/machine_memory.h"

namespace bitalloc {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;

std::vector<int64_t> layers_at(const std::vector<Place>& places, Place where) {
  std::vector<int64_t> layers;
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] == where) layers.push_back(static_cast<int64_t>(i));
  }
  return layers;
}

using Layers = std::vector<int64_t>;

// 12 layers, 10 bytes of hidden state and 30 of q, k, v each: 11 · 10 + 12 · 30 = 470 in all.
TEST(PlanActivations, DeviceThenHostThenNowhere) {
  const KeepPlan all = plan_activations(12, 10, 30, 470, 0);
  EXPECT_TRUE(all.all_on_device());
  EXPECT_EQ(all.device_bytes, 470);
  EXPECT_EQ(all.hidden[0], Place::kNowhere);  // the embedding

  const KeepPlan one_less = plan_activations(12, 10, 30, 469, 0);
  EXPECT_FALSE(one_less.all_on_device());
  EXPECT_EQ(layers_at(one_less.qkv, Place::kNowhere), (Layers{11}));
  EXPECT_EQ(one_less.device_bytes, 440);

  const KeepPlan hidden_only = plan_activations(12, 10, 30, 110, 0);
  EXPECT_EQ(layers_at(hidden_only.hidden, Place::kDevice).size(), 11U);
  EXPECT_EQ(layers_at(hidden_only.qkv, Place::kDevice), Layers{});

  const KeepPlan some_qkv = plan_activations(12, 10, 30, 110 + 60, 30);
  EXPECT_EQ(layers_at(some_qkv.qkv, Place::kDevice), (Layers{0, 1}));
  EXPECT_EQ(layers_at(some_qkv.qkv, Place::kHost), (Layers{2}));
  EXPECT_EQ(some_qkv.host_bytes, 30);

  // Room for three of eleven: every third layer.
  const KeepPlan thin = plan_activations(12, 10, 30, 20, 19);
  EXPECT_EQ(layers_at(thin.hidden, Place::kDevice), (Layers{3, 6}));
  EXPECT_EQ(layers_at(thin.hidden, Place::kHost), (Layers{9}));

  const KeepPlan nothing = plan_activations(12, 10, 30, 9, 9);
  EXPECT_EQ(nothing.device_bytes + nothing.host_bytes, 0);
}

// No smaller step between kept layers would fit, for every number of layers and every room.
TEST(PlanActivations, KeepsAsManyHiddenStatesAsFit) {
  for (int64_t layers = 1; layers <= 40; ++layers) {
    for (int64_t room = 0; room <= layers; ++room) {
      const KeepPlan plan = plan_activations(layers, 10, 1000, 10 * room, 0);
      const Layers kept = layers_at(plan.hidden, Place::kDevice);
      int64_t step = 1;
      while ((layers - 1) / step > room) ++step;
      Layers expected;
      for (int64_t i = step; i < layers; i += step) expected.push_back(i);
      EXPECT_EQ(kept, expected) << layers << " layers, room for " << room;
      EXPECT_LE(plan.device_bytes, 10 * room);
    }
  }
}

// hidden 8, gate and up 16 each, 2 query heads and 1 KV head of 4: q 8, k and v 4 each.
NetworkShape small_network() {
  return {.layers = 4,
          .hidden_size = 8,
          .intermediate_size = 16,
          .num_heads = 2,
          .num_kv_heads = 1,
          .head_dim = 4,
          .vocab_size = 100,
          .tile_bytes = 400 * 10,
          .stack_bytes = kGiB,
          .weight_bytes = 5000};
}

TEST(Formulas, ByHand) {
  NetworkShape network = small_network();
  EXPECT_EQ(hidden_bytes(network, 3), 3 * 8 * 4);
  EXPECT_EQ(qkv_bytes(network, 3), 3 * (8 + 4 + 4) * 4);
  EXPECT_EQ(tile_rows(network), 10);
  EXPECT_EQ(trials_per_stack(network, 100), 2);
  EXPECT_EQ(trials_per_stack(network, 85), 2);  // three fit; powers of two
  EXPECT_EQ(trials_per_stack(network, 300), 1);
  // A layer of 20 000 tokens: hidden 8, q, k, v 16, attention's result twice 16, then in the MLP
  // the sum, its norm and the output (24), gate and up and their product (48); float32.
  const BatchShape batch = {.sequences = 1, .length = 20000, .tokens = 20000, .rows = 20000};
  EXPECT_EQ(layer_bytes(network, batch, 1), 20000 * 4 * (8 + 16 + 16 + 24 + 48));
  // A mask of tokens² on a CPU, boolean and as float32, beside attention's blocks of 1 MiB.
  const BatchShape holes = {
      .sequences = 1, .length = 20000, .tokens = 20000, .rows = 19999, .irregular = true};
  EXPECT_EQ(layer_bytes(network, holes, 1),
            20000 * 4 * (8 + 16 + 16) + kMiB + int64_t{20000} * 20000 * 5);
  // Gate and up are the widest activation; with product and residual 4 × 16 × 2 bytes a token.
  network.on_cpu = false;
  network.element_bytes = 2;
  network.stack_bytes = 4 * 16 * 2 * 1000 * 3;
  EXPECT_EQ(trials_per_stack(network, 1000), 3);
}

TEST(BatchShape, CountsWhatIsReal) {
  TokenSet batch;
  batch.sequences = 3;
  batch.length = 4;
  batch.input_ids.assign(12, 0);
  batch.mask = {1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0};
  const BatchShape shape = batch_shape(batch);
  EXPECT_EQ(shape.tokens, 3);
  EXPECT_EQ(shape.shortest, 1);
  EXPECT_EQ(shape.rows, 4);
  EXPECT_FALSE(shape.irregular);
  batch.mask[8 + 3] = 1;  // padding on the left
  EXPECT_TRUE(batch_shape(batch).irregular);
  EXPECT_EQ(batch_shape(batch).tokens, 4);
}

TEST(PlanUnit, GivesUpActivationsThenSitesThenCandidatesThenSequences) {
  NetworkShape network = small_network();
  const BatchShape batch = {
      .sequences = 8, .length = 4096, .tokens = 4096, .shortest = 4096, .rows = 8 * 4096};
  const WorkShape work = {.sites = 4, .candidates = 4};
  MemoryBudget budget = {.device_bytes = kGiB, .activation_bytes = kGiB};
  const auto whole = plan_unit(network, batch, work, budget);
  ASSERT_TRUE(whole.ok());
  EXPECT_TRUE(whole->keep.all_on_device());
  // Three hidden states and four of q, k and v: 32768 tokens × (3 · 32 + 4 · 64).
  EXPECT_EQ(whole->keep.device_bytes, int64_t{32768} * (3 * 32 + 4 * 64));

  std::vector<int64_t> last = {8, 4, 4};
  std::set<std::vector<int64_t>> seen;
  for (int64_t bytes = whole->peak_bytes; bytes >= whole->smallest_bytes; bytes -= 10000) {
    budget.device_bytes = bytes;
    const auto plan = plan_unit(network, batch, work, budget);
    ASSERT_TRUE(plan.ok()) << bytes;
    EXPECT_LE(plan->peak_bytes, bytes);
    EXPECT_EQ(plan->smallest_bytes, whole->smallest_bytes);
    const std::vector<int64_t> parts = {plan->sequences, plan->candidates, plan->sites};
    EXPECT_LE(parts, last) << bytes;  // lexicographically
    last = parts;
    seen.insert(parts);
  }
  for (const std::vector<int64_t>& parts :
       {std::vector<int64_t>{8, 4, 4}, {8, 4, 2}, {8, 4, 1}, {8, 2, 1}, {8, 1, 1}, {1, 1, 1}}) {
    EXPECT_TRUE(seen.contains(parts)) << parts[0] << parts[1] << parts[2];
  }
}

TEST(PlanUnit, SaysHowManyBytesAreMissing) {
  const NetworkShape network = small_network();
  const BatchShape batch = {
      .sequences = 2, .length = 512, .tokens = 512, .shortest = 512, .rows = 1024};
  const WorkShape work = {.sites = 2, .candidates = 3};
  const auto fits = plan_unit(network, batch, work, {.device_bytes = kGiB});
  ASSERT_TRUE(fits.ok());
  const int64_t needed = fits->smallest_bytes;
  const auto exactly = plan_unit(network, batch, work, {.device_bytes = needed});
  ASSERT_TRUE(exactly.ok());
  EXPECT_TRUE(exactly->is_smallest());
  EXPECT_EQ(exactly->sequences, 1);
  const auto refused = plan_unit(network, batch, work, {.device_bytes = needed - 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  for (const int64_t number : {needed, needed - 1, network.weight_bytes, int64_t{512}}) {
    EXPECT_NE(refused.error().message.find(fmt::format("{}", number)), std::string::npos)
        << refused.error().message;
  }
}

TEST(Budget, SharesWhatThereIs) {
  const MemoryBudget cpu = make_budget({.machine_workers = 2}, true, 20 * kGiB, 20 * kGiB);
  EXPECT_EQ(cpu.device_bytes, 9 * kGiB);
  EXPECT_EQ(cpu.activation_bytes, 9 * kGiB / 4);
  EXPECT_EQ(cpu.host_activation_bytes, 0);
  const MemoryBudget gpu = make_budget({.machine_workers = 2}, false, 80 * kGiB, 64 * kGiB);
  EXPECT_EQ(gpu.device_bytes, 72 * kGiB);
  EXPECT_EQ(gpu.activation_bytes, 36 * kGiB);
  EXPECT_EQ(gpu.host_activation_bytes, 8 * kGiB);
  const MemoryBudget said = make_budget(
      {.limit_bytes = 7, .activation_bytes = 0, .host_activation_bytes = 3}, false, 80, 64);
  EXPECT_EQ(said.device_bytes, 7);
  EXPECT_EQ(said.activation_bytes, 0);
  EXPECT_EQ(said.host_activation_bytes, 3);
}

TEST(BytesText, UnitsAndBytes) {
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(3 * kGiB / 2), "1.50 GiB (1610612736 bytes)");
}

// A machine of files: 4 GiB available by the kernel.
class MachineOfFiles : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / fmt::format("machine_memory_{}", ::getpid());
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable:    4194304 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  fs::path root_;
};

TEST_F(MachineOfFiles, WithoutAGroup) {
  EXPECT_EQ(available_host_bytes(root_), 4 * kGiB);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(available_host_bytes(root_), 4 * kGiB);
}

// The group around the process's own is the narrower one; page cache counts as free.
TEST_F(MachineOfFiles, Version2) {
  write("proc/self/cgroup", "0::/pod/worker\n");
  write("sys/fs/cgroup/pod/memory.max", fmt::format("{}\n", 2 * kGiB));
  write("sys/fs/cgroup/pod/memory.current", fmt::format("{}\n", kGiB));
  write("sys/fs/cgroup/pod/memory.stat", fmt::format("anon 5\ninactive_file {}\n", 512 * kMiB));
  write("sys/fs/cgroup/pod/worker/memory.max", "max\n");
  EXPECT_EQ(available_host_bytes(root_), kGiB + 512 * kMiB);
}

// In a container the group's own folder is mounted at the top.
TEST_F(MachineOfFiles, Version1InAContainer) {
  write("proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", fmt::format("{}\n", 3 * kGiB));
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", fmt::format("{}\n", kGiB));
  EXPECT_EQ(available_host_bytes(root_), 2 * kGiB);
}

}  // namespace
}  // namespace bitalloc
