#include "ops/cli/answers.h"

#include <fmt/format.h>

#include "ops/cli/confidence_text.h"
#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace fs = std::filesystem;

Result<Checkpoint> fetch_checkpoint(Connection& connection, const std::string& id) {
  BA_ASSIGN_OR_RETURN(const wire::Message reply, connection.request("checkpoint", {{"id", id}}));
  if (reply.blobs.size() != 1) return internal_error("the service sent no checkpoint");
  return parse_checkpoint(reply.blobs[0], fmt::format("checkpoint of '{}'", id));
}

Result<Answers> Answers::open(const Context& context, const std::string& id,
                              const std::string& file) {
  Answers answers;
  answers.id_ = id;
  if (!file.empty()) {
    BA_ASSIGN_OR_RETURN(answers.checkpoint_, read_checkpoint(file));
    if (id.empty()) answers.id_ = answers.checkpoint_->id;
    return answers;
  }
  BA_RETURN_IF_ERROR(validate_search_id(id));
  const fs::path local = local_paths(context.home).checkpoint(id);
  std::error_code ignored;
  if (context.server.empty() && fs::is_regular_file(local, ignored)) {
    BA_ASSIGN_OR_RETURN(Checkpoint checkpoint, read_checkpoint(local));
    if (checkpoint.table.complete()) {
      answers.checkpoint_ = std::move(checkpoint);
      return answers;
    }
  }
  BA_ASSIGN_OR_RETURN(answers.connection_, Connection::open(context));
  return answers;
}

Result<Json> Answers::assignment(std::optional<double> bits, const AllocateOptions& options) {
  if (checkpoint_.has_value()) {
    const Checkpoint& c = *checkpoint_;
    return allocate(c.id, c.spec, c.fingerprint, c.table, bits.value_or(c.spec.effective_bits),
                    options);
  }
  Json header = to_json(options);
  header["id"] = id_;
  header["effective_bits"] = bits.has_value() ? Json(*bits) : Json();
  BA_ASSIGN_OR_RETURN(const Json reply, connection_->ask("assignment", std::move(header)));
  BA_ASSIGN_OR_RETURN(Json answer, json_field<Json>(reply, "assignment", "reply"));
  if ((options.confidence && !answer.contains("confidence")) ||
      (options.smooth && !answer.contains("smoothed_objective_kl_nats"))) {
    return unsupported("the service knows neither --confidence nor --smooth", "--confidence",
                       "update it, or `bitalloc checkpoint export` and --checkpoint FILE");
  }
  return answer;
}

Result<Json> Answers::frontier(bool partial) {
  if (!checkpoint_.has_value()) {
    auto reply = connection_->ask("frontier", {{"id", id_}, {"partial", partial}});
    if (reply.ok() || reply.error().code != ErrorCode::kResourceExhausted) return reply;
  }
  BA_ASSIGN_OR_RETURN(const Checkpoint* c, checkpoint());
  return frontier_json(c->id, c->spec, c->table, partial);
}

Result<const Checkpoint*> Answers::checkpoint() {
  if (!checkpoint_.has_value()) {
    BA_ASSIGN_OR_RETURN(checkpoint_, fetch_checkpoint(*connection_, id_));
  }
  return &*checkpoint_;
}

std::string assignment_text(const Json& assignment) {
  using Align = Table::Align;
  Table table({{"site"},
               {"K"},
               {"V"},
               {"bits", Align::kRight},
               {"KL nats/token", Align::kRight},
               {"± s.e.", Align::kRight}});
  for (const Json& site : assignment.at("sites")) {
    const std::string candidate = site.at("candidate");
    const size_t slash = candidate.find('/');
    table.add({site.at("site"), candidate.substr(0, slash), candidate.substr(slash + 1),
               bits_text(site.at("bits")), nats_text(site.at("kl_nats_per_token")),
               nats_text(site.at("standard_error"))});
  }
  const bool proven = assignment.value("proven_optimal", false);
  const Json error = assignment.value("objective_standard_error", Json());
  std::string text = fmt::format(
      "{}\n\nsearch {}: {} effective bits (budget {}), summed KL {:.4e}{} nats a token, {}",
      table.text(), assignment.at("search").get<std::string>(),
      bits_text(assignment.at("effective_bits")),
      bits_text(assignment.at("budget").at("effective_bits")),
      assignment.at("objective_kl_nats").get<double>(),
      error.is_null() ? "" : fmt::format(" ± {:.1e}", error.get<double>()),
      proven ? "proven optimal" : fmt::format("gap {:.2g}", assignment.value("gap", 0.0)));
  if (assignment.contains("smoothed_objective_kl_nats")) {
    text += fmt::format(
        "\nchosen on smoothed scores (none grows with the bits), whose sum is {:.4e} nats a token",
        assignment.at("smoothed_objective_kl_nats").get<double>());
  }
  if (assignment.contains("confidence")) {
    text += "\n\n" + confidence_text(assignment.at("confidence"));
  }
  return text;
}

}  // namespace bitalloc::cli
