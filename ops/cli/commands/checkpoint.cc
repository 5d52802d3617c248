// `bitalloc checkpoint`: a search as one file.
#include <fmt/format.h>

#include <memory>

#include "common/checkpoint.h"
#include "common/files.h"
#include "ops/cli/answers.h"
#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace {

Json describe(const Checkpoint& checkpoint) {
  const SearchSpec& spec = checkpoint.spec;
  Json candidates = Json::array();
  for (const Candidate& candidate : spec.candidates)
    candidates.push_back(candidate_name(candidate));
  return {{"id", checkpoint.id},
          {"kind", spec.kind == JobKind::kSearch ? "search" : "validation"},
          {"fingerprint", checkpoint.fingerprint.sha256},
          {"model", spec.model.name},
          {"family", spec.model.family},
          {"dtype", spec.dtype},
          {"recipe", spec.recipe},
          {"sites", spec.sites.size()},
          {"candidates", candidates},
          {"sequences", spec.sequences},
          {"length", spec.length},
          {"effective_bits", spec.effective_bits},
          {"memory", spec.memory ? to_json(*spec.memory) : Json()},
          {"units",
           {{"total", checkpoint.table.units_total()}, {"done", checkpoint.table.units_done()}}},
          {"complete", checkpoint.table.complete()}};
}

void print_description(const Context& context, const Json& facts) {
  if (context.json) {
    print_json(facts);
    return;
  }
  for (const auto& [name, value] : facts.items()) {
    print_line(context, fmt::format("{:<15} {}", name,
                                    value.is_string() ? value.get<std::string>() : value.dump()));
  }
}

Result<int> export_file(const Context& context, const std::string& id, const std::string& file) {
  BA_ASSIGN_OR_RETURN(Answers answers, Answers::open(context, id, ""));
  BA_ASSIGN_OR_RETURN(const Checkpoint* checkpoint, answers.checkpoint());
  BA_RETURN_IF_ERROR(write_checkpoint(*checkpoint, file));
  if (context.json) {
    print_json(describe(*checkpoint));
  } else {
    print_line(context, fmt::format("{}: {} of {} units", file, checkpoint->table.units_done(),
                                    checkpoint->table.units_total()));
  }
  return kExitOk;
}

Result<int> import_file(const Context& context, const std::string& file) {
  BA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, read_checkpoint(file));
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_ASSIGN_OR_RETURN(const wire::Message reply,
                      connection->request("import", Json::object(), {serialize(checkpoint)}));
  if (context.json) {
    print_json(reply.header);
  } else {
    print_line(context, fmt::format("{}: {} of {} units", reply.header.value("id", checkpoint.id),
                                    checkpoint.table.units_done(), checkpoint.table.units_total()));
  }
  return kExitOk;
}

Result<int> inspect_file(const Context& context, const std::string& file) {
  BA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, read_checkpoint(file));
  print_description(context, describe(checkpoint));
  return kExitOk;
}

}  // namespace

void add_checkpoint_commands(CommandLine& line) {
  const Context& context = line.context;
  auto id = std::make_shared<std::string>();
  auto file = std::make_shared<std::string>();
  CLI::App* group = line.app.add_subcommand("checkpoint", "a search as one file");
  group->require_subcommand(1);
  CLI::App* command =
      add_command(line, *group, "export", "write a search's checkpoint",
                  "example:\n  bitalloc checkpoint export my-search my-search.json");
  command->add_option("ID", *id, "the search")->required();
  command->add_option("FILE", *file, "where to")->required();
  on_run(line, command, [=, &context] { return export_file(context, *id, *file); });

  command = add_command(line, *group, "import", "take a checkpoint into the service",
                        "example:\n  bitalloc checkpoint import my-search.json");
  command->add_option("FILE", *file, "a checkpoint")->required();
  on_run(line, command, [=, &context] { return import_file(context, *file); });

  command = add_command(line, *group, "inspect", "check a checkpoint file and say what it holds",
                        "example:\n  bitalloc checkpoint inspect my-search.json", false);
  command->add_option("FILE", *file, "a checkpoint")->required();
  on_run(line, command, [=, &context] { return inspect_file(context, *file); });
}

}  // namespace bitalloc::cli
