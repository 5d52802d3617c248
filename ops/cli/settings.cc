#include "ops/cli/settings.h"

#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>
#include <vector>

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

const std::set<std::string> kSettings = {"server",
                                         "server_public_key",
                                         "key",
                                         "home",
                                         "workers",
                                         "threads",
                                         "device",
                                         "dtype",
                                         "python",
                                         "recipes",
                                         "memory_limit",
                                         "activation_memory",
                                         "host_activation_memory"};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path user_directory(const char* xdg_variable, const char* below_home) {
  const std::string xdg = environment(xdg_variable);
  if (!xdg.empty()) return fs::path(xdg) / "bitalloc";
  const std::string home = environment("HOME");
  return fs::path(home.empty() ? "/tmp" : home) / below_home / "bitalloc";
}

Result<fs::path> settings_file() {
  std::error_code ignored;
  const std::string named = environment("BITALLOC_CONFIG");
  if (!named.empty()) {
    if (fs::is_regular_file(named, ignored)) return fs::path(named);
    return invalid_argument(fmt::format("BITALLOC_CONFIG names no file: {}", named), named);
  }
  const std::vector<fs::path> places = {
      "bitalloc.yaml", user_directory("XDG_CONFIG_HOME", ".config") / "bitalloc.yaml"};
  for (const fs::path& place : places) {
    if (fs::is_regular_file(place, ignored)) return place;
  }
  return fs::path();
}

Status apply_settings(const YAML::Node& root, const std::string& file) {
  if (root.IsNull()) return {};
  if (!root.IsMap()) return invalid_argument(fmt::format("{}: not a mapping", file), file);
  for (const auto& entry : root) {
    const std::string key = entry.first.as<std::string>();
    const std::string where = fmt::format("{}:{}", file, entry.first.Mark().line + 1);
    if (!kSettings.contains(key) || !entry.second.IsScalar()) {
      return invalid_argument(fmt::format("{}: '{}' is not a setting with one value", where, key),
                              where, fmt::format("settings are: {}", fmt::join(kSettings, ", ")));
    }
    std::string variable = "BITALLOC_" + key;
    std::transform(variable.begin(), variable.end(), variable.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    ::setenv(variable.c_str(), entry.second.as<std::string>().c_str(), /*overwrite=*/0);
  }
  return {};
}

}  // namespace

Status apply_settings_file() {
  BA_ASSIGN_OR_RETURN(const fs::path file, settings_file());
  if (file.empty()) return {};
  try {
    return apply_settings(YAML::LoadFile(file.string()), file.string());
  } catch (const YAML::Exception& e) {
    return invalid_argument(fmt::format("{}:{}: {}", file.string(), e.mark.line + 1, e.msg),
                            file.string());
  }
}

fs::path default_home() {
  const std::string home = environment("BITALLOC_HOME");
  return home.empty() ? user_directory("XDG_DATA_HOME", ".local/share") : fs::path(home);
}

fs::path this_program() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

fs::path find_in_path(const std::string& name) {
  std::istringstream path(environment("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    const fs::path file = fs::path(folder.empty() ? "." : folder) / name;
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

fs::path program_beside(const std::string& name) {
  const fs::path beside = this_program().parent_path() / name;
  if (::access(beside.c_str(), X_OK) == 0) return beside;
  const fs::path found = find_in_path(name);
  return found.empty() ? fs::path(name) : found;
}

fs::path shipped(const std::string& relative) {
  const fs::path folder = this_program().parent_path();  // <tree>/build/bin or <prefix>/bin
  const std::vector<fs::path> roots = {folder.parent_path().parent_path(),
                                       folder.parent_path() / "share" / "bitalloc"};
  for (const fs::path& root : roots) {
    std::error_code ignored;
    if (fs::exists(root / relative, ignored)) return root / relative;
  }
  return {};
}

}  // namespace bitalloc::cli
