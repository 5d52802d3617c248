#include "ops/cli/recipe.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "common/files.h"
#include "common/tokens.h"
#include "kernels/formats/catalogue.h"
#include "ops/cli/settings.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxRecipeBytes = 1 << 20;

// Reads one recipe's keys; every error names file:line and key.
class Reader {
 public:
  Reader(YAML::Node root, std::string file) : root_(std::move(root)), file_(std::move(file)) {}

  Error wrong(const YAML::Node& node, const std::string& key, const std::string& what) const {
    const int line = node.IsDefined() ? node.Mark().line : root_.Mark().line;
    const std::string where = fmt::format("{}:{}", file_, line + 1);
    return invalid_argument(fmt::format("{}: {} {}", where, key, what),
                            fmt::format("{}: {}", where, key));
  }

  Status only(const std::set<std::string>& known) const {
    if (!root_.IsMap()) {
      return invalid_argument(fmt::format("{}: not a mapping of keys to values", file_), file_);
    }
    std::set<std::string> seen;
    for (const auto& entry : root_) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (!known.contains(key)) {
        std::string there;
        for (const std::string& name : known) there += (there.empty() ? "" : ", ") + name;
        Error error = wrong(entry.first, fmt::format("'{}'", key), "is not a key of a recipe");
        error.hint = "keys are: " + there;
        return error;
      }
      if (!seen.insert(key).second) return wrong(entry.first, key, "is there twice");
    }
    return {};
  }

  template <typename T>
  Status read(const std::string& key, bool required, const std::string& expected, T& value) const {
    const YAML::Node node = root_[key];
    if (!node.IsDefined()) {
      return required ? Status(wrong(node, key, "is missing")) : Status();
    }
    try {
      value = node.as<T>();
      return {};
    } catch (const YAML::Exception&) {
      return wrong(node, key, "must be " + expected);
    }
  }

  Error wrong_value(const std::string& key, const std::string& what) const {
    return wrong(root_[key], key, what);
  }

 private:
  YAML::Node root_;
  std::string file_;
};

Status read_names(const Reader& reader, Recipe& recipe) {
  BA_RETURN_IF_ERROR(reader.read("name", true, "text", recipe.name));
  BA_RETURN_IF_ERROR(reader.read("description", false, "text", recipe.description));
  BA_RETURN_IF_ERROR(reader.read("candidates", true, "a list of formats", recipe.candidates));
  BA_RETURN_IF_ERROR(
      reader.read("disabled_layers", false, "a list of patterns", recipe.disabled_layers));
  std::string method = "kl_div";
  BA_RETURN_IF_ERROR(reader.read("method", false, "text", method));
  if (method != "kl_div") return reader.wrong_value("method", "must be kl_div");
  return {};
}

Status read_policies(const Reader& reader, Recipe& recipe) {
  std::string scale = "constant";
  std::string encoding = "served";
  BA_RETURN_IF_ERROR(reader.read("scale_policy", false, "constant or calibrated", scale));
  BA_RETURN_IF_ERROR(reader.read("encoding", false, "served or modelopt", encoding));
  const auto policy = parse_scale_policy(scale, "scale_policy");
  if (!policy.ok()) return reader.wrong_value("scale_policy", "must be constant or calibrated");
  const auto parsed = parse_encoding(encoding, "encoding");
  if (!parsed.ok()) return reader.wrong_value("encoding", "must be served or modelopt");
  recipe.scale_policy = *policy;
  recipe.encoding = *parsed;
  return {};
}

Status read_numbers(const Reader& reader, Recipe& recipe) {
  BA_RETURN_IF_ERROR(reader.read("effective_bits", true, "a number", recipe.effective_bits));
  BA_RETURN_IF_ERROR(reader.read("sequences", false, "a whole number", recipe.sequences));
  BA_RETURN_IF_ERROR(reader.read("length", false, "a whole number", recipe.length));
  if (!(std::isfinite(recipe.effective_bits) && recipe.effective_bits > 0)) {
    return reader.wrong_value("effective_bits", "must be above 0");
  }
  if (recipe.sequences < 1 || recipe.sequences > kMaxSequences) {
    return reader.wrong_value("sequences", fmt::format("must be 1…{}", kMaxSequences));
  }
  if (recipe.length < 2 || recipe.length > kMaxLength) {
    return reader.wrong_value("length", fmt::format("must be 2…{}", kMaxLength));
  }
  return {};
}

Result<Recipe> read_recipe(const YAML::Node& root, const std::string& file) {
  const Reader reader(root, file);
  BA_RETURN_IF_ERROR(
      reader.only({"name", "description", "candidates", "scale_policy", "encoding",
                   "effective_bits", "method", "sequences", "length", "disabled_layers"}));
  Recipe recipe;
  BA_RETURN_IF_ERROR(read_names(reader, recipe));
  BA_RETURN_IF_ERROR(read_policies(reader, recipe));
  BA_RETURN_IF_ERROR(read_numbers(reader, recipe));
  const auto candidates = recipe_candidates(recipe);
  if (!candidates.ok()) return reader.wrong_value("candidates", "– " + candidates.error().message);
  return recipe;
}

void apply_policies(const Recipe& recipe, Format& format) {
  const bool own_scales = format.granularity == Granularity::kTokenHead;
  if (has_parameter(format.kind, "scale") && !own_scales &&
      recipe.scale_policy != ScalePolicy::kConstant) {
    format.scale = recipe.scale_policy;
  }
  if (format.kind == FormatKind::kNvfp4 && recipe.encoding != Encoding::kServed) {
    format.encoding = recipe.encoding;
  }
}

}  // namespace

Result<ScalePolicy> parse_scale_policy(const std::string& text, const std::string& field) {
  if (text == "constant") return ScalePolicy::kConstant;
  if (text == "calibrated") return ScalePolicy::kCalibrated;
  return invalid_argument(
      fmt::format("{}: '{}' is unknown; there are constant and calibrated", field, text), field);
}

Result<Encoding> parse_encoding(const std::string& text, const std::string& field) {
  if (text == "served") return Encoding::kServed;
  if (text == "modelopt") return Encoding::kModelopt;
  return invalid_argument(
      fmt::format("{}: '{}' is unknown; there are served and modelopt", field, text), field);
}

Result<std::vector<Candidate>> recipe_candidates(const Recipe& recipe) {
  std::vector<Candidate> candidates;
  for (const std::string& name : recipe.candidates) {
    BA_ASSIGN_OR_RETURN(Candidate candidate, parse_candidate(name));
    apply_policies(recipe, candidate.k);
    apply_policies(recipe, candidate.v);
    if (std::find(candidates.begin(), candidates.end(), candidate) != candidates.end()) {
      return invalid_argument(
          fmt::format("candidate {} is listed twice", candidate_name(candidate)), "candidates");
    }
    candidates.push_back(candidate);
  }
  if (candidates.empty()) return invalid_argument("no candidate is listed", "candidates");
  return candidates;
}

Result<Recipe> parse_recipe(const std::string& text, const std::string& file) {
  try {
    return read_recipe(YAML::Load(text), file);
  } catch (const YAML::Exception& e) {
    const std::string where = fmt::format("{}:{}", file, e.mark.line + 1);
    return invalid_argument(fmt::format("{}: {}", where, e.msg), where);
  }
}

fs::path recipes_folder() {
  const char* named = std::getenv("BITALLOC_RECIPES");
  return named != nullptr && *named != '\0' ? fs::path(named) : shipped("ops/recipes");
}

std::vector<fs::path> recipe_files() {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(recipes_folder(), error)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Result<fs::path> find_recipe(const std::string& name_or_file) {
  std::error_code ignored;
  const fs::path named = recipes_folder() / (name_or_file + ".yaml");
  if (name_or_file.find('/') == std::string::npos && fs::is_regular_file(named, ignored)) {
    return named;
  }
  if (fs::is_regular_file(name_or_file, ignored)) return fs::path(name_or_file);
  std::string there;
  for (const fs::path& file : recipe_files()) {
    there += (there.empty() ? "" : ", ") + file.stem().string();
  }
  return invalid_argument(
      fmt::format("recipe '{}' is neither a file nor one that ships", name_or_file), "--recipe",
      there.empty() ? "set BITALLOC_RECIPES to the folder of recipes" : "recipes are: " + there);
}

Result<Recipe> load_recipe(const std::string& name_or_file) {
  BA_ASSIGN_OR_RETURN(const fs::path file, find_recipe(name_or_file));
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxRecipeBytes));
  return parse_recipe(text, file.string());
}

Json to_json(const Recipe& recipe) {
  return {
      {"name", recipe.name},
      {"description", recipe.description},
      {"candidates", recipe.candidates},
      {"scale_policy", recipe.scale_policy == ScalePolicy::kConstant ? "constant" : "calibrated"},
      {"encoding", recipe.encoding == Encoding::kServed ? "served" : "modelopt"},
      {"effective_bits", recipe.effective_bits},
      {"method", "kl_div"},
      {"sequences", recipe.sequences},
      {"length", recipe.length},
      {"disabled_layers", recipe.disabled_layers}};
}

}  // namespace bitalloc::cli
