#include "common/model_roots.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace bitalloc {
namespace {

namespace fs = std::filesystem;

class Roots : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "roots-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    base_ = fs::canonical(pattern);
    for (const char* folder : {"models/plain", "models-private/secret", "outside/model"}) {
      fs::create_directories(base_ / folder);
      std::ofstream(base_ / folder / "config.json") << "{}";
    }
    roots_ = *ModelRoots::make({(base_ / "models").string()}, "--model-root");
  }
  void TearDown() override { fs::remove_all(base_); }

  std::string path(const std::string& name) const { return (base_ / name).string(); }
  bool allowed(const std::string& name) const {
    const Result<fs::path> resolved = roots_.resolve(path(name));
    if (!resolved.ok()) {
      EXPECT_EQ(resolved.error().field, "model.path");
    }
    return resolved.ok();
  }

  fs::path base_;
  ModelRoots roots_;
};

TEST_F(Roots, TakeWhatIsBelowThem) {
  EXPECT_EQ(*roots_.resolve(path("models/plain")), base_ / "models/plain");
  EXPECT_EQ(*roots_.resolve(path("models/plain/")), base_ / "models/plain");
  EXPECT_EQ(*roots_.resolve(path("models/../models/plain")), base_ / "models/plain");
  EXPECT_TRUE(ModelRoots::make({path("models/")}, "f")->resolve(path("models/plain")).ok());
  EXPECT_TRUE(ModelRoots().resolve("/anywhere/at/all").ok());
}

TEST_F(Roots, RefuseTraversal) {
  EXPECT_FALSE(allowed("outside/model"));
  EXPECT_FALSE(allowed("models/../outside/model"));
  EXPECT_FALSE(allowed("models/plain/../../outside/model"));
  EXPECT_FALSE(allowed("models-private/secret")) << "a name that begins like a root";
  EXPECT_FALSE(allowed("models/none"));
  EXPECT_FALSE(roots_.resolve("").ok());
  EXPECT_FALSE(roots_.resolve("/").ok());
}

TEST_F(Roots, RefuseLinksThatLeave) {
  fs::create_directory_symlink(base_ / "outside/model", base_ / "models/escape");
  EXPECT_FALSE(allowed("models/escape"));
  fs::create_directories(base_ / "models/weights-elsewhere");
  fs::create_symlink(base_ / "outside/model/config.json",
                     base_ / "models/weights-elsewhere/config.json");
  EXPECT_FALSE(allowed("models/weights-elsewhere"));
  fs::create_directories(base_ / "models/dangling");
  fs::create_symlink("nowhere", base_ / "models/dangling/model.safetensors");
  EXPECT_FALSE(allowed("models/dangling"));
}

// The layout of Hugging Face's cache: snapshots/REVISION/FILE → ../../blobs/HASH.
TEST_F(Roots, TakeACacheWhoseFilesAreLinksWithinIt) {
  const fs::path model = base_ / "models/models--a--b";
  fs::create_directories(model / "blobs");
  fs::create_directories(model / "snapshots/abc");
  std::ofstream(model / "blobs/1234") << "{}";
  fs::create_symlink("../../blobs/1234", model / "snapshots/abc/config.json");
  EXPECT_EQ(*roots_.resolve((model / "snapshots/abc").string()), model / "snapshots/abc");
  // A root that is itself reached over a link.
  fs::create_directory_symlink(base_ / "models", base_ / "link");
  const ModelRoots linked = *ModelRoots::make({path("link")}, "f");
  EXPECT_TRUE(linked.resolve(path("link/plain")).ok());
  EXPECT_TRUE(linked.check_name(path("link/not-mounted-here")).ok());
}

TEST_F(Roots, NamesOfModelsThatAreNotHereAreCheckedAsNames) {
  EXPECT_TRUE(roots_.check_name(path("models/not-mounted-here")).ok());
  EXPECT_TRUE(roots_.check_name(path("models/plain")).ok());
  for (const std::string& name :
       {path("outside/not-here"), path("models/../outside/not-here"), path("models/x/../y"),
        path("outside/model"), std::string("models/plain"), std::string()}) {
    EXPECT_FALSE(roots_.check_name(name).ok()) << name;
  }
}

TEST_F(Roots, MustBeFolders) {
  const auto bad = ModelRoots::make({path("models/plain/config.json")}, "--model-root");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().field, "--model-root");
  EXPECT_FALSE(ModelRoots::make({path("none")}, "--model-root").ok());
}

}  // namespace
}  // namespace bitalloc
