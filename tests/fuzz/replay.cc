// Runs a target over the files of folders, once each: the everyday test of a corpus.
//
//   TARGET_replay FOLDER…
//
// A file ok-* must be accepted and a file bad-* refused; any other need only not end the process.
// The name is printed before the file is tried, so that the last line names what a crash was about.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/target.h"

namespace fs = std::filesystem;

namespace {

// False: the file is not treated as its name says.
bool try_file(const fs::path& file) {
  fmt::print("{}\n", file.string());
  std::fflush(stdout);
  std::ifstream stream(file, std::ios::binary);
  const std::string input((std::istreambuf_iterator<char>(stream)), {});
  const bool accepted = bitalloc::fuzz::accepts(input);
  const std::string name = file.filename().string();
  const bool wrong =
      (name.starts_with("ok-") && !accepted) || (name.starts_with("bad-") && accepted);
  if (wrong) fmt::print("  {}, which its name denies\n", accepted ? "accepted" : "refused");
  return !wrong;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) continue;  // a target without a regression yet
    for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  const auto named = [&](const char* prefix) {
    return std::any_of(files.begin(), files.end(), [&](const fs::path& file) {
      return file.filename().string().starts_with(prefix);
    });
  };
  if (!named("ok-") || !named("bad-")) {
    fmt::print("no file ok-* or no file bad-*: this would show nothing\n");
    return 1;
  }
  int wrong = 0;
  for (const fs::path& file : files) wrong += try_file(file) ? 0 : 1;
  fmt::print("{} files, {} of them not as their names say\n", files.size(), wrong);
  return wrong == 0 ? 0 : 1;
}
