// Gloo between threads: what every call gives, and that a rank which is gone ends the others' wait.
#include "worker/collective.h"

#include <dlfcn.h>
#include <gloo/allreduce.h>
#include <gtest/gtest.h>

#include <chrono>

#include "worker/ranks_for_test.h"
#include "worker/shard.h"

namespace bitalloc {
namespace {

using std::chrono::milliseconds;

// LibTorch exports the symbols of another Gloo: with it first, headers and code would not fit.
TEST(Gloo, IsTheSystemsLibrary) {
  Dl_info info = {};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&gloo::allreduce), &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("libgloo"), std::string::npos) << info.dli_fname;
}

TEST(Collective, SumsMaximaAndGathers) {
  for (const int size : {2, 3, 4}) {
    on_ranks(size, [size](Collective& group) {
      EXPECT_EQ(group.size(), size);
      const double mine = group.rank() + 1;
      const at::Tensor sum = at::full({5, 1001}, mine, at::kFloat);
      group.all_reduce_sum(sum);
      EXPECT_TRUE(at::equal(sum, at::full({5, 1001}, size * (size + 1) / 2, at::kFloat)));
      const at::Tensor largest = at::tensor({mine, -mine}, at::kDouble);
      group.all_reduce_max(largest);
      EXPECT_TRUE(at::equal(largest, at::tensor({double(size), -1.0}, at::kDouble)));
      const at::Tensor all = group.all_gather(at::tensor({mine}, at::kDouble));
      EXPECT_TRUE(at::equal(all.flatten(), at::arange(1, size + 1).to(at::kDouble)));
    });
  }
}

TEST(Collective, AgreesOnTheHost) {
  on_ranks(3, [](Collective& group) {
    EXPECT_FALSE(group.any(false));
    EXPECT_TRUE(group.any(group.rank() == 2));
    EXPECT_EQ(group.broadcast(group.rank() == 0 ? "from 0" : "no"), "from 0");
    EXPECT_EQ(group.broadcast(""), "");
    EXPECT_EQ(group.gather_texts(std::string(static_cast<size_t>(group.rank()), 'x')),
              (std::vector<std::string>{"", "x", "xx"}));
  });
}

TEST(Collective, EveryRankGetsTheErrorOfOne) {
  on_ranks(3, [](Collective& group) {
    EXPECT_TRUE(agree(group, {}).ok());
    const Status mine =
        group.rank() == 1 ? Status(mismatch("other weights", "model.path")) : Status();
    const Status all = agree(group, mine);
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(all.error().message, "rank 1: other weights");
    EXPECT_EQ(all.error().field, "model.path");
  });
}

// The same bits on every rank: decisions are made of them.
TEST(Collective, SumsAreTheSameBitsEverywhere) {
  on_ranks(4, [](Collective& group) {
    at::Tensor x = at::empty({999});
    for (int64_t i = 0; i < x.numel(); ++i) {
      x[i] = std::sin(static_cast<double>(i * 7 + group.rank() * 13)) / 3;
    }
    group.all_reduce_sum(x);
    const at::Tensor all = group.all_gather(x);
    for (int rank = 1; rank < 4; ++rank) EXPECT_TRUE(at::equal(all[0], all[rank]));
  });
}

TEST(Collective, ARankThatIsGoneEndsTheWait) {
  on_ranks(3, [](Collective& group) {
    EXPECT_FALSE(group.any(false));
    if (group.rank() == 1) return;  // its sockets close
    EXPECT_THROW(
        {
          for (int i = 0; i < 3; ++i) group.any(false);
        },
        CollectiveError);
  });
}

TEST(Collective, ARankThatIsLateEndsTheWaitAfterTheTimeout) {
  on_ranks(2, [](Collective& group) {
    EXPECT_FALSE(group.any(false));
    group.set_timeout(milliseconds(300));
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(1500));
      return;
    }
    EXPECT_THROW(group.any(false), CollectiveError);
  });
}

TEST(Shard, SharesCoverEverythingOnce) {
  for (const int64_t total : {1, 7, 95, 96, 2048}) {
    for (int size = 1; size <= 7; ++size) {
      int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Span span = share(total, rank, size);
        EXPECT_EQ(span.begin, next);
        EXPECT_LE(share(total, size - 1, size).count, span.count);
        next += span.count;
      }
      EXPECT_EQ(next, total);
    }
  }
}

}  // namespace
}  // namespace bitalloc
