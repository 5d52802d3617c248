// Where models may be: the folders that an operator names, and nothing outside them.
//
// A client names a directory that other machines then open. Without roots it may name any; with
// roots, what the path and its files really are (symbolic links followed) must lie below one of
// them. The cache of Hugging Face works, whose files are links into a folder beside them: give the
// cache as the root. Whoever can write below a root can change links after the check: that is the
// operator and those he trusts. Pure but for reading the file system; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/status.h"

namespace bitalloc {

class ModelRoots {
 public:
  // No roots: every path is allowed.
  ModelRoots() = default;
  // Errors: kInvalidArgument naming `flag` when a root is no directory.
  static Result<ModelRoots> make(const std::vector<std::string>& folders, const std::string& flag);

  // Where the model really is: open it there. Errors (field "model.path"): kInvalidArgument when
  // it, or one of its files, is outside the roots or cannot be resolved.
  Result<std::filesystem::path> resolve(const std::string& path) const;

  // For who may not have the model mounted (the coordinator): like resolve() when the path is here;
  // otherwise the path itself must be absolute, without "..", and below a root.
  Status check_name(const std::string& path) const;

 private:
  bool contains(const std::filesystem::path& resolved) const;
  Error outside(const std::string& path) const;
  Status check_files(const std::filesystem::path& directory) const;

  std::vector<std::filesystem::path> given_;     // as named
  std::vector<std::filesystem::path> resolved_;  // canonical
};

}  // namespace bitalloc
