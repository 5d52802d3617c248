// Real stores over loopback: which rank gets into which group.
#include "worker/rendezvous.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

namespace bitalloc {
namespace {

using std::chrono::milliseconds;

// A rank 0 on a free port, and the address that it wrote down.
std::pair<Rendezvous, std::string> first_rank_0() {
  const std::string path = ::testing::TempDir() + "rendezvous-" + std::to_string(::getpid());
  std::filesystem::remove(path);
  Rendezvous met = *meet({.address = "file:" + path, .rank = 0});
  std::string address;
  std::getline(std::ifstream(path), address);
  std::filesystem::remove(path);
  return {std::move(met), address};
}

TEST(Rendezvous, EveryRankHasOnePlace) {
  const auto [rank_0, address] = first_rank_0();
  ASSERT_TRUE(meet({.address = address, .rank = 1}).ok());
  ASSERT_TRUE(meet({.address = address, .rank = 2}).ok());
  const auto twin = meet({.address = address, .rank = 1, .timeout = milliseconds(200)});
  ASSERT_FALSE(twin.ok());
  EXPECT_EQ(twin.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(twin.error().message, "the group at " + address + " has its rank 1 already");
}

// A rank 1 that was killed is back before its rank 0 has noticed: it used to join that group, which
// then ended, and waited there for minutes while the next rank 0 waited for it.
TEST(Rendezvous, ARankThatIsStartedAgainGetsIntoTheNextGroup) {
  auto [old_rank_0, address] = first_rank_0();
  const auto killed = meet({.address = address, .rank = 1});
  ASSERT_TRUE(killed.ok());
  old_rank_0.store->set("group", "the old one");
  auto again =
      std::async(std::launch::async, [&address] { return meet({.address = address, .rank = 1}); });
  EXPECT_EQ(again.wait_for(milliseconds(500)), std::future_status::timeout);
  old_rank_0.store.reset();
  const auto new_rank_0 = meet({.address = address, .rank = 0});
  ASSERT_TRUE(new_rank_0.ok()) << new_rank_0.error().message;
  new_rank_0->store->set("group", "the new one");
  const auto met = again.get();
  ASSERT_TRUE(met.ok()) << met.error().message;
  EXPECT_EQ(met->store->get("group"), "the new one");
}

}  // namespace
}  // namespace bitalloc
