// What there is: formats, recipes, recipe show, recipe check.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <map>
#include <memory>

#include "common/files.h"
#include "kernels/formats/catalogue.h"
#include "ops/cli/output.h"
#include "ops/cli/recipe.h"

namespace bitalloc::cli {
namespace {

constexpr int64_t kHeadDim = 128;  // that costs are shown for

// Formats with the same parameters on one line.
std::string parameters_text() {
  std::map<std::string, std::string> formats;
  for (const FormatRow& format : format_catalogue()) {
    const auto choices = parameter_choices(format);
    if (choices.empty()) continue;
    std::string& names = formats[fmt::format("{}", fmt::join(choices, "  "))];
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  }
  std::string text = "parameters, as in int4[group=32,axis=channel], the default first:";
  for (const auto& [choices, names] : formats) text += "\n" + names + "\n  " + choices;
  return text;
}

Result<int> formats(const Context& context) {
  Json rows = Json::array();
  Table table({{"format"}, {"bits", Table::Align::kRight}, {"scales"}, {"served by"}, {"what"}});
  for (const FormatRow& format : format_catalogue()) {
    const std::string name = format.name;
    const double bits = bits_per_element({format.kind}, {kHeadDim});
    table.add({name, bits_text(bits), format.granularity, format.served_by, format.description});
    rows.push_back({{"format", name},
                    {"bits_per_element", bits},
                    {"parameters", parameter_choices(format)},
                    {"granularity", format.granularity},
                    {"served_by", format.served_by},
                    {"description", format.description}});
  }
  if (context.json) {
    print_json(rows);
  } else {
    print_line(context, table.text());
    print_line(context, parameters_text());
  }
  return kExitOk;
}

Result<int> recipes(const Context& context) {
  Json rows = Json::array();
  Table table({{"recipe"}, {"bits", Table::Align::kRight}, {"what"}});
  for (const auto& file : recipe_files()) {
    BA_ASSIGN_OR_RETURN(const std::string text, read_file(file));
    BA_ASSIGN_OR_RETURN(const Recipe recipe, parse_recipe(text, file.string()));
    rows.push_back(to_json(recipe));
    table.add({recipe.name, bits_text(recipe.effective_bits), recipe.description});
  }
  if (context.json) {
    print_json(rows);
  } else {
    print_line(context, table.text());
  }
  return kExitOk;
}

Result<int> show(const Context& context, const std::string& name) {
  BA_ASSIGN_OR_RETURN(const auto file, find_recipe(name));
  BA_ASSIGN_OR_RETURN(const std::string text, read_file(file));
  BA_ASSIGN_OR_RETURN(const Recipe recipe, parse_recipe(text, file.string()));
  if (context.json) {
    print_json(to_json(recipe));
  } else {
    std::fputs(text.c_str(), stdout);
  }
  return kExitOk;
}

Result<int> check(const Context& context, const std::string& file) {
  BA_ASSIGN_OR_RETURN(const Recipe recipe, load_recipe(file));
  if (context.json) {
    print_json({{"file", file}, {"valid", true}, {"recipe", to_json(recipe)}});
  } else {
    print_line(context, fmt::format("{}: good ({} candidates, {} effective bits)", file,
                                    recipe.candidates.size(), bits_text(recipe.effective_bits)));
  }
  return kExitOk;
}

}  // namespace

void add_catalog_commands(CommandLine& line) {
  const Context& context = line.context;
  auto name = std::make_shared<std::string>();
  CLI::App* command = add_command(line, line.app, "formats", "the number formats that there are",
                                  "example:\n  bitalloc formats", false);
  on_run(line, command, [&context] { return formats(context); });
  command = add_command(line, line.app, "recipes", "the recipes that ship",
                        "example:\n  bitalloc recipes", false);
  on_run(line, command, [&context] { return recipes(context); });

  CLI::App* group = line.app.add_subcommand("recipe", "one recipe");
  group->require_subcommand(1);
  command = add_command(line, *group, "show", "print a recipe",
                        "example:\n  bitalloc recipe show kv_fp8_nvfp4_cast_kl_div", false);
  command->add_option("NAME", *name, "name or file")->required();
  on_run(line, command, [=, &context] { return show(context, *name); });
  command = add_command(line, *group, "check", "check a recipe file",
                        "example:\n  bitalloc recipe check mine.yaml", false);
  command->add_option("FILE", *name, "name or file")->required();
  on_run(line, command, [=, &context] { return check(context, *name); });
}

}  // namespace bitalloc::cli
