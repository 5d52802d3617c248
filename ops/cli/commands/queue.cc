// The queue: list, status, watch, cancel, pause, resume, reprioritize, delete, workers.
#include <fmt/format.h>

#include <ctime>
#include <memory>

#include "ops/cli/follow.h"
#include "ops/cli/interrupt.h"
#include "ops/cli/output.h"
#include "ops/cli/progress.h"

namespace bitalloc::cli {
namespace {

std::string text_of(const Json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return "-";
  return object[key].is_string() ? object[key].get<std::string>() : object[key].dump();
}

std::string age_text(const Json& search) {
  const double created = search.value("created_unix", 0.0);
  return created <= 0 ? "-" : duration_text(static_cast<double>(std::time(nullptr)) - created);
}

std::string list_text(const Json& searches) {
  using Align = Table::Align;
  Table table({{"id"},
               {"kind"},
               {"state"},
               {"done", Align::kRight},
               {"units", Align::kRight},
               {"priority", Align::kRight},
               {"age", Align::kRight},
               {"model"}});
  for (const Json& search : searches) {
    const Json units = search.value("units", Json::object());
    table.add({text_of(search, "id"), text_of(search, "kind"), text_of(search, "state"),
               fmt::format("{:.0f} %", 100 * search.value("progress", 0.0)),
               fmt::format("{}/{}", units.value("done", 0), units.value("total", 0)),
               text_of(search, "priority"), age_text(search), text_of(search, "model")});
  }
  return table.text();
}

Result<int> list(const Context& context) {
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_ASSIGN_OR_RETURN(const Json reply, connection->ask("list"));
  BA_ASSIGN_OR_RETURN(const Json searches, json_field<Json>(reply, "searches", "reply"));
  if (context.json) {
    print_json(searches);
  } else if (searches.empty()) {
    print_note("no searches");
  } else {
    print_line(context, list_text(searches));
  }
  return kExitOk;
}

// What went wrong with the units that are set aside.
std::string failed_units_lines(const Json& status) {
  const Json rows = status.value("failed_units", Json::array());
  std::string text;
  for (const Json& row : rows) {
    const int attempts = row.value("attempts", 0) + row.value("losses", 0);
    text += fmt::format("\n  failed: {}, {} times, last on worker {}: {}", text_of(row, "unit"),
                        attempts, text_of(row, "worker"),
                        text_of(row.value("error", Json::object()), "message"));
  }
  const size_t all = status.value("units", Json::object()).value("failed", size_t{0});
  if (all > rows.size()) text += fmt::format("\n  and {} more", all - rows.size());
  return text;
}

std::string status_lines(const Json& status) {
  std::string text = fmt::format("{}: {}", text_of(status, "id"), status_text(status));
  text += fmt::format("\n  model {}, priority {}, fingerprint {}", text_of(status, "model"),
                      text_of(status, "priority"), text_of(status, "fingerprint").substr(0, 16));
  if (status.contains("error") && status["error"].is_object()) {
    text += "\n  error: " + text_of(status["error"], "message");
  }
  text += failed_units_lines(status);
  return text;
}

// The commands that send one message and print the status that comes back.
Result<int> act(const Context& context, const std::string& type, const Json& header) {
  BA_RETURN_IF_ERROR(validate_search_id(header.at("id")));
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_ASSIGN_OR_RETURN(const Json status, connection->ask(type, header));
  if (context.json) {
    print_json(status);
  } else {
    print_line(context, status_lines(status));
  }
  return kExitOk;
}

Result<int> remove(const Context& context, const std::string& id) {
  BA_RETURN_IF_ERROR(validate_search_id(id));
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_RETURN_IF_ERROR(connection->ask("delete", {{"id", id}}));
  if (context.json) {
    print_json({{"id", id}, {"deleted", true}});
  } else {
    print_line(context, fmt::format("deleted {}", id));
  }
  return kExitOk;
}

// With --json one status a line until the search ends.
Result<int> watch(const Context& context, const std::string& id) {
  BA_RETURN_IF_ERROR(validate_search_id(id));
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  if (!context.json) {
    BA_ASSIGN_OR_RETURN(const Ending ending, follow(*connection, id, "the search stays as it is"));
    if (ending.kind != Ending::Kind::kDone) return report_ending(context, ending);
    print_line(context, fmt::format("{} is done: bitalloc assignment {}", id, id));
    return kExitOk;
  }
  Json last;
  const auto print_change = [&last](const Json& status) {
    if (status != last) print_json(status);
    last = status;
    return true;
  };
  Result<Json> status = connection->watch(id, print_change);
  if (interrupted()) return static_cast<int>(kExitDetached);
  if (!status.ok()) return status.error();
  return status->value("state", "") == "done" ? kExitOk : kExitFailed;
}

std::string workers_text(const Json& workers) {
  Table table({{"host"},
               {"pid", Table::Align::kRight},
               {"device"},
               {"tp", Table::Align::kRight},
               {"state"},
               {"units", Table::Align::kRight},
               {"done", Table::Align::kRight},
               {"model switches", Table::Align::kRight},
               {"epoch"}});
  for (const Json& worker : workers) {
    const Json units = worker.value("units", Json());
    table.add({text_of(worker, "host"), text_of(worker, "pid"), text_of(worker, "device"),
               text_of(worker, "tp"), text_of(worker, "state"),
               units.is_array() ? fmt::format("{}", units.size()) : text_of(worker, "units"),
               text_of(worker, "units_done"), text_of(worker, "model_switches"),
               text_of(worker, "epoch")});
  }
  return table.text();
}

Result<int> workers(const Context& context) {
  BA_ASSIGN_OR_RETURN(const auto connection, Connection::open(context));
  BA_ASSIGN_OR_RETURN(const Json reply, connection->ask("workers"));
  BA_ASSIGN_OR_RETURN(const Json list, json_field<Json>(reply, "workers", "reply"));
  if (context.json) {
    print_json(list);
  } else if (list.empty()) {
    print_note("no workers; `bitalloc serve` and `bitalloc search` start some");
  } else {
    print_line(context, workers_text(list));
  }
  return kExitOk;
}

CLI::App* add_id_command(CommandLine& line, const std::string& name, const std::string& description,
                         std::shared_ptr<std::string> id) {
  CLI::App* command = add_command(line, line.app, name, description,
                                  fmt::format("example:\n  bitalloc {} my-search", name));
  command->add_option("ID", *id, "the search")->required();
  return command;
}

}  // namespace

void add_queue_commands(CommandLine& line) {
  const Context& context = line.context;
  auto id = std::make_shared<std::string>();  // shared by the handlers: one of them runs
  CLI::App* command =
      add_command(line, line.app, "list", "every search", "example:\n  bitalloc list --json");
  on_run(line, command, [&context] { return list(context); });
  command = add_id_command(line, "watch", "follow a search until it ends", id);
  on_run(line, command, [id, &context] { return watch(context, *id); });
  const std::pair<const char*, const char*> acts[] = {
      {"status", "how a search stands"},
      {"cancel", "stop a search; what is done stays"},
      {"pause", "hand out no more of a search's units"},
      {"resume", "go on with a paused search; failed units get new attempts"}};
  for (const auto& [name, description] : acts) {
    command = add_id_command(line, name, description, id);
    on_run(line, command, [id, &context, type = std::string(name)] {
      return act(context, type, {{"id", *id}});
    });
  }
  auto priority = std::make_shared<int>(0);
  command = add_id_command(line, "reprioritize", "move a search in the queue", id);
  command->add_option("--priority", *priority, "higher goes first")->required();
  on_run(line, command, [id, priority, &context] {
    return act(context, "reprioritize", {{"id", *id}, {"priority", *priority}});
  });
  command = add_id_command(line, "delete", "forget a search and its scores", id);
  on_run(line, command, [id, &context] { return remove(context, *id); });
  command =
      add_command(line, line.app, "workers", "who works", "example:\n  bitalloc workers --json");
  on_run(line, command, [&context] { return workers(context); });
}

}  // namespace bitalloc::cli
