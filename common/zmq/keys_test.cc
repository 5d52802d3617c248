#include "common/zmq/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace bitalloc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The client of the test keys in zmq_curve(7).
constexpr const char* kSecret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
constexpr const char* kPublic = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";

class Keys : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "keys-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    std::ofstream(folder_ / name) << text;
    ::chmod((folder_ / name).c_str(), mode);
    return folder_ / name;
  }

  fs::path folder_;
};

TEST_F(Keys, FilesComeBackAsTheyWereMade) {
  const NamedKey made = *make_key_files(folder_ / "new", KeyRole::kWorker, "gpu-1");
  const NamedKey back = *read_public_key(folder_ / "new/gpu-1.pub");
  EXPECT_EQ(back.role, KeyRole::kWorker);
  EXPECT_EQ(back.name, "gpu-1");
  EXPECT_EQ(back.key, made.key);
  struct stat state = {};
  ASSERT_EQ(::stat((folder_ / "new/gpu-1.key").c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 07777, 0600u);
  ASSERT_EQ(::stat((folder_ / "new").c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 07777, 0700u);
  const auto again = make_key_files(folder_ / "new", KeyRole::kWorker, "gpu-1");
  EXPECT_THAT(again.error().message, HasSubstr("gpu-1.key"));
  EXPECT_FALSE(make_key_files(folder_, KeyRole::kWorker, "../gpu").ok());
}

TEST_F(Keys, TheOwnPublicKeyFollowsFromTheSecret) {
  const std::string server = write("server.pub", std::string("server s ") + kPublic).string();
  const std::string own = write("a.key", std::string("secret client a ") + kSecret).string();
  const CurveClient client = *load_client_keys(server, own, {KeyRole::kClient});
  EXPECT_EQ(client.public_key, kPublic);
  EXPECT_EQ(client.server_public_key, kPublic);
  const auto other = load_client_keys(server, own, {KeyRole::kWorker});
  EXPECT_THAT(other.error().message,
              HasSubstr("is the key of a client; here it takes one of a worker"));

  ::setenv("BITALLOC_SECRET_KEY", kSecret, 1);
  EXPECT_EQ(load_client_keys(server, "", {KeyRole::kClient})->public_key, kPublic);
  ::setenv("BITALLOC_SECRET_KEY", "short", 1);
  EXPECT_FALSE(load_client_keys(server, "", {KeyRole::kClient}).ok());
  ::unsetenv("BITALLOC_SECRET_KEY");
  EXPECT_FALSE(load_client_keys(server, "", {KeyRole::kClient}).ok());
  EXPECT_EQ(load_client_keys("", own, {KeyRole::kClient}).error().field, "server_public_key");
  EXPECT_THAT(load_client_keys(own, own, {KeyRole::kClient}).error().message,
              HasSubstr("holds a secret key"));
}

TEST_F(Keys, ASecretThatOthersCanReadIsRefused) {
  const std::string text = std::string("secret client a ") + kSecret;
  const bool root = ::getuid() == 0;
  for (const mode_t mode : {0604, 0602, 0644, 0666, 0660, 0620}) {
    const auto key = read_secret_key(write("a.key", text, mode));
    ASSERT_FALSE(key.ok()) << std::oct << mode;
    EXPECT_THAT(key.error().hint, HasSubstr("chmod 600"));
  }
  EXPECT_EQ(read_secret_key(write("a.key", text, 0640)).ok(), root) << "a mounted secret is root's";
  EXPECT_TRUE(read_secret_key(write("a.key", text, 0600)).ok());
  EXPECT_TRUE(read_secret_key(write("a.key", text, 0400)).ok());
}

TEST_F(Keys, WrongFilesAreNamed) {
  for (const std::string& text :
       {std::string(), std::string("secret"), std::string("secret client a x"),
        std::string("secret client a ") + kSecret + "\nsecret client b " + kSecret,
        std::string("client a ") + kPublic, std::string(5'000, 'x')}) {
    const fs::path file = write("bad.key", text);
    const auto key = read_secret_key(file);
    ASSERT_FALSE(key.ok()) << text;
    EXPECT_EQ(key.error().field, file.string()) << text;
  }
  EXPECT_FALSE(read_secret_key(folder_ / "none").ok());
}

TEST_F(Keys, TheListKeepsItsOrderAndSkipsComments) {
  const std::string other = make_key_pair().public_key;
  const fs::path list = write("allowed", "# a comment\n\n  viewer  a   " + std::string(kPublic) +
                                             "\n#worker gone " + other + "\nworker b " + other);
  const std::vector<NamedKey> keys = *read_allow_list(list);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].role, KeyRole::kViewer);
  EXPECT_EQ(keys[0].key, kPublic);
  EXPECT_EQ(keys[1].name, "b");
  ASSERT_TRUE(write_allow_list(list, keys).ok());
  EXPECT_EQ(read_allow_list(list)->at(1).key, other);
  EXPECT_TRUE(read_allow_list(write("empty", "")).value().empty());
}

}  // namespace
}  // namespace bitalloc
