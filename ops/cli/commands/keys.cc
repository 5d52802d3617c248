// `bitalloc keys`: making keys, and who is allowed to connect.
#include <fmt/format.h>

#include <memory>

#include "ops/cli/key_store.h"
#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kExamples = R"(examples, on the machine of the service:
  bitalloc keys server                            its own key: server.key, server.pub
  bitalloc keys new --role worker --name gpu-1 --allow
  bitalloc keys allow ann.pub                     somebody made a key and sent the public half
  bitalloc keys revoke ann                        takes effect within a second
and on a client's: its NAME.key and the service's server.pub, e.g. in bitalloc.yaml
  server: tcp://service:7600
  key: /home/ann/.config/bitalloc/ann.key
  server_public_key: /home/ann/.config/bitalloc/server.pub)";

struct KeyFlags {
  std::string role;
  std::string name;
  std::string output;  // folder
  std::string list;    // allow-list
  std::vector<std::string> files;
  bool allow = false;
};

fs::path folder_of(const Context& context, const KeyFlags& flags) {
  return flags.output.empty() ? keys_folder(context.home) : fs::path(flags.output);
}

fs::path list_of(const Context& context, const KeyFlags& flags) {
  return flags.list.empty() ? allow_list_file(context.home) : fs::path(flags.list);
}

Json key_json(const NamedKey& key) {
  return {{"role", key_role_name(key.role)}, {"name", key.name}, {"public_key", key.key}};
}

Result<int> make(const Context& context, const KeyFlags& flags, KeyRole role) {
  const std::string name = flags.name.empty() ? key_role_name(role) : flags.name;
  const fs::path folder = folder_of(context, flags);
  std::error_code ignored;
  if (flags.output.empty()) fs::create_directories(context.home, ignored);
  BA_ASSIGN_OR_RETURN(const NamedKey key, make_key_files(folder, role, name));
  if (flags.allow) BA_RETURN_IF_ERROR(allow_key(list_of(context, flags), key));
  Json json = key_json(key);
  json["key_file"] = (folder / (name + ".key")).string();
  json["public_key_file"] = (folder / (name + ".pub")).string();
  json["allowed"] = flags.allow;
  if (context.json) {
    print_json(json);
    return kExitOk;
  }
  print_line(context, fmt::format("secret  {} (for {} alone)\npublic  {}",
                                  json["key_file"].get<std::string>(), name,
                                  json["public_key_file"].get<std::string>()));
  if (role != KeyRole::kServer && !flags.allow) {
    print_note(fmt::format("where the service runs: bitalloc keys allow {}.pub", name));
  }
  return kExitOk;
}

Result<int> allow(const Context& context, const KeyFlags& flags) {
  Json added = Json::array();
  for (const std::string& file : flags.files) {
    BA_ASSIGN_OR_RETURN(const NamedKey key, read_public_key(file));
    if (key.role == KeyRole::kServer) {
      return invalid_argument(fmt::format("{} is a server's key, which allows nothing", file),
                              file);
    }
    BA_RETURN_IF_ERROR(allow_key(list_of(context, flags), key));
    added.push_back(key_json(key));
    print_line(context, fmt::format("allowed {} {}", key_role_name(key.role), key.name));
  }
  if (context.json) print_json(added);
  return kExitOk;
}

Result<int> revoke(const Context& context, const KeyFlags& flags) {
  BA_RETURN_IF_ERROR(revoke_key(list_of(context, flags), flags.name));
  if (context.json) {
    print_json({{"name", flags.name}, {"revoked", true}});
  } else {
    print_line(context, fmt::format("revoked {}", flags.name));
  }
  return kExitOk;
}

Result<int> list(const Context& context, const KeyFlags& flags) {
  BA_ASSIGN_OR_RETURN(const auto keys, allowed_keys(list_of(context, flags)));
  Json rows = Json::array();
  Table table({{"role"}, {"name"}, {"public key"}});
  for (const NamedKey& key : keys) {
    rows.push_back(key_json(key));
    table.add({key_role_name(key.role), key.name, key.key});
  }
  if (context.json) {
    print_json(rows);
  } else if (keys.empty()) {
    print_note("nobody is allowed to connect over TCP; `bitalloc keys allow FILE.pub`");
  } else {
    print_line(context, table.text());
  }
  return kExitOk;
}

CLI::App* add_keys_command(CommandLine& line, CLI::App& keys, const std::string& name,
                           const std::string& description) {
  CLI::App* command = add_command(line, keys, name, description, kExamples, /*service=*/false);
  command->add_option("--home", line.context.home, "folder of local mode")
      ->envname("BITALLOC_HOME");
  return command;
}

void add_list_option(CLI::App* command, KeyFlags& flags) {
  command->add_option("--list", flags.list, "the allow-list (default: HOME/keys/allowed_keys)");
}

void add_making(CommandLine& line, CLI::App& keys, std::shared_ptr<KeyFlags> flags) {
  const Context& context = line.context;
  CLI::App* command = add_keys_command(line, keys, "server", "make the service's own key");
  command->add_option("--name", flags->name, "of the files (default: server)");
  command->add_option("--output", flags->output, "folder (default: HOME/keys)");
  on_run(line, command, [=, &context] { return make(context, *flags, KeyRole::kServer); });

  command =
      add_keys_command(line, keys, "new", "make the key of a client, viewer, admin or worker");
  command->add_option("--role", flags->role, "what its holder may do")
      ->required()
      ->check(CLI::IsMember({"viewer", "client", "admin", "worker"}));
  command->add_option("--name", flags->name, "of the holder and the files (default: the role)");
  command->add_option("--output", flags->output, "folder (default: HOME/keys)");
  command->add_flag("--allow", flags->allow, "put it on the allow-list, too");
  add_list_option(command, *flags);
  on_run(line, command, [=, &context]() -> Result<int> {
    BA_ASSIGN_OR_RETURN(const KeyRole role, parse_key_role(flags->role));
    return make(context, *flags, role);
  });
}

}  // namespace

void add_keys_commands(CommandLine& line) {
  const Context& context = line.context;
  auto flags = std::make_shared<KeyFlags>();  // shared by the handlers: one of them runs
  CLI::App* keys = line.app.add_subcommand("keys", "make keys, and say who may connect");
  keys->require_subcommand(1);
  keys->footer(kExamples);
  add_making(line, *keys, flags);

  CLI::App* command = add_keys_command(line, *keys, "allow", "let the holders of keys connect");
  command->add_option("FILE", flags->files, "public keys (.pub)")->required();
  add_list_option(command, *flags);
  on_run(line, command, [=, &context] { return allow(context, *flags); });

  command = add_keys_command(line, *keys, "revoke", "let a key connect no more");
  command->add_option("NAME", flags->name, "as `keys list` shows it")->required();
  add_list_option(command, *flags);
  on_run(line, command, [=, &context] { return revoke(context, *flags); });

  command = add_keys_command(line, *keys, "list", "who may connect");
  add_list_option(command, *flags);
  on_run(line, command, [=, &context] { return list(context, *flags); });
}

}  // namespace bitalloc::cli
