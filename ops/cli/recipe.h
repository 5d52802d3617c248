// Recipes: what a search tries and how, as YAML (ops/recipes/). The schema is strict: an unknown or
// mistyped key is an error with file and line, never ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "kernels/formats/format.h"

namespace bitalloc::cli {

struct Recipe {
  std::string name;
  std::string description;
  std::vector<std::string> candidates;  // as written: "fp8_e4m3/nvfp4"
  ScalePolicy scale_policy = ScalePolicy::kConstant;
  Encoding encoding = Encoding::kServed;
  double effective_bits = 0;
  int64_t sequences = 64;
  int64_t length = 512;
  std::vector<std::string> disabled_layers;  // shell patterns on names of attention modules
};

// Errors: kInvalidArgument naming file:line and key.
Result<Recipe> parse_recipe(const std::string& text, const std::string& file);

// `name_or_file`: a shipped recipe's name, or a path. Errors: kInvalidArgument listing what there
// is when it is neither.
Result<Recipe> load_recipe(const std::string& name_or_file);

// The file that load_recipe would read.
Result<std::filesystem::path> find_recipe(const std::string& name_or_file);

// BITALLOC_RECIPES, else ops/recipes of the source tree or the installation.
std::filesystem::path recipes_folder();
// Files of the folder, by name.
std::vector<std::filesystem::path> recipe_files();

// The candidates with scale policy and encoding put in where a format leaves them open.
// Errors: kInvalidArgument for an unknown format or one that is listed twice.
Result<std::vector<Candidate>> recipe_candidates(const Recipe& recipe);

// "constant", "calibrated" and "served", "modelopt". Errors: kInvalidArgument (field = `field`).
Result<ScalePolicy> parse_scale_policy(const std::string& text, const std::string& field);
Result<Encoding> parse_encoding(const std::string& text, const std::string& field);

Json to_json(const Recipe& recipe);

}  // namespace bitalloc::cli
