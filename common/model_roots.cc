#include "common/model_roots.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace bitalloc {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxFiles = 100'000;  // of a model directory

// Component by component: /models-private is not below /models.
bool is_below(const fs::path& path, const fs::path& root) {
  const auto [in_root, in_path] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return in_root == root.end() || (std::next(in_root) == root.end() && in_root->empty());
}

}  // namespace

Result<ModelRoots> ModelRoots::make(const std::vector<std::string>& folders,
                                    const std::string& flag) {
  ModelRoots roots;
  for (const std::string& folder : folders) {
    std::error_code error;
    const fs::path resolved = fs::canonical(folder, error);
    if (error || !fs::is_directory(resolved, error)) {
      return invalid_argument(fmt::format("{} '{}' is not a directory", flag, folder), flag);
    }
    roots.given_.push_back(fs::absolute(folder, error).lexically_normal());
    roots.resolved_.push_back(resolved);
  }
  return roots;
}

bool ModelRoots::contains(const fs::path& resolved) const {
  return std::any_of(resolved_.begin(), resolved_.end(),
                     [&](const fs::path& root) { return is_below(resolved, root); });
}

Error ModelRoots::outside(const std::string& path) const {
  std::vector<std::string> names;
  for (const fs::path& root : given_) names.push_back(root.string());
  return invalid_argument(fmt::format("'{}' is outside the folders that models may come from ({})",
                                      path, fmt::join(names, ", ")),
                          "model.path",
                          "put the model there, or ask the operator for another --model-root");
}

Result<fs::path> ModelRoots::resolve(const std::string& path) const {
  if (resolved_.empty()) return fs::path(path);
  std::error_code error;
  const fs::path directory = fs::canonical(path, error);
  // The same words whether something is there or not: a path is no way to ask what exists.
  if (error || !contains(directory)) return outside(path);
  BA_RETURN_IF_ERROR(check_files(directory));
  return directory;
}

Status ModelRoots::check_files(const fs::path& directory) const {
  std::error_code error;
  int files = 0;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (++files > kMaxFiles) {
      return resource_exhausted(fmt::format("'{}' holds too many files", directory.string()),
                                "model.path");
    }
    if (!it->is_symlink()) continue;
    std::error_code broken;
    const fs::path target = fs::canonical(it->path(), broken);
    if (broken || !contains(target)) return outside(it->path().string());
  }
  if (!error) return {};
  return invalid_argument(
      fmt::format("cannot read the folder '{}': {}", directory.string(), error.message()),
      "model.path");
}

Status ModelRoots::check_name(const std::string& path) const {
  if (resolved_.empty()) return {};
  std::error_code error;
  if (fs::exists(path, error)) {
    BA_RETURN_IF_ERROR(resolve(path));
    return {};
  }
  const fs::path named(path);
  const bool climbs = std::find(named.begin(), named.end(), "..") != named.end();
  const bool below = std::any_of(given_.begin(), given_.end(), [&](const fs::path& root) {
    return is_below(named.lexically_normal(), root);
  });
  if (named.is_absolute() && !climbs && below) return {};
  return outside(path);
}

}  // namespace bitalloc
