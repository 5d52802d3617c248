// A recipe's YAML.
#include "ops/cli/recipe.h"

#include "tests/fuzz/target.h"

bool bitalloc::fuzz::accepts(std::string_view input) {
  const auto recipe = cli::parse_recipe(std::string(input), "recipe.yaml");
  if (!recipe.ok()) {
    BA_CHECK(recipe.error().message.starts_with("recipe.yaml"), recipe.error().message);
    return false;
  }
  BA_CHECK(recipe->effective_bits > 0 && recipe->sequences >= 1 && recipe->length >= 2, "bounds");
  const auto candidates = cli::recipe_candidates(*recipe);
  BA_CHECK(candidates.ok() && candidates->size() == recipe->candidates.size(), "candidates");
  cli::to_json(*recipe);
  return true;
}
