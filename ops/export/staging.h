// A directory that appears at once or not at all: filled beside its place, flushed, renamed.
// One thread at a time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/status.h"

namespace bitalloc {

class StagingDirectory {
 public:
  // Makes a hidden sibling of `target` and removes siblings that a killed process left. `target`
  // may not exist, or be an empty directory. With `replace` it may also be a directory that holds
  // `marker`, a file by which we know it as one of ours.
  // Errors: kInvalidArgument (field = target) otherwise, or when the file system says no.
  static Result<StagingDirectory> create(const std::filesystem::path& target, bool replace,
                                         const std::string& marker);
  ~StagingDirectory();  // what was not published is removed
  StagingDirectory(StagingDirectory&& other) noexcept;
  StagingDirectory& operator=(StagingDirectory&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& target() const { return target_; }  // absolute

  Status write_file(const std::string& name, std::string_view content);

  enum class Placed { kLinked, kCopied };
  // A hard link to `source` (symbolic links followed), or a flushed copy where the file system
  // cannot link it: another file system, not our file, too many links.
  Result<Placed> place_file(const std::filesystem::path& source, const std::string& name);

  // Flushes the directory and puts it at the target, whose former content (if any) goes. Readers
  // see the old or the new directory, whole.
  Status publish();

 private:
  StagingDirectory(std::filesystem::path target, std::filesystem::path path, int lock_fd)
      : target_(std::move(target)), path_(std::move(path)), lock_fd_(lock_fd) {}

  std::filesystem::path target_;
  std::filesystem::path path_;  // empty once published or moved from
  int lock_fd_ = -1;            // locked as long as we live: others then know we are not a leftover
};

}  // namespace bitalloc
