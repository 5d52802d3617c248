#include "ops/cli/answers.h"

#include <fmt/format.h>

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

Result<Json> Answers::assignment(std::optional<double> bits, const Pins& pins, bool with_scores) {
  if (checkpoint_.has_value()) {
    const Checkpoint& c = *checkpoint_;
    return allocate(c.id, c.spec, c.fingerprint, c.table, bits.value_or(c.spec.effective_bits),
                    pins, with_scores);
  }
  if (pins.empty()) {
    const Json budget = bits.has_value() ? Json(*bits) : Json();
    BA_ASSIGN_OR_RETURN(
        const Json reply,
        connection_->ask("assignment",
                         {{"id", id_}, {"effective_bits", budget}, {"scores", with_scores}}));
    return json_field<Json>(reply, "assignment", "reply");
  }
  if (!bits.has_value()) {
    BA_ASSIGN_OR_RETURN(const Checkpoint* found, checkpoint());
    bits = found->spec.effective_bits;
  }
  BA_ASSIGN_OR_RETURN(
      const Json reply,
      connection_->ask("rebudget", {{"id", id_}, {"budgets", {*bits}}, {"pins", pins}}));
  BA_ASSIGN_OR_RETURN(const Json list, json_field<Json>(reply, "assignments", "reply"));
  if (!list.is_array() || list.size() != 1) return internal_error("the service sent no assignment");
  return list[0];
}

Result<Json> Answers::frontier() {
  if (checkpoint_.has_value()) {
    return frontier_json(checkpoint_->id, checkpoint_->spec, checkpoint_->table);
  }
  BA_ASSIGN_OR_RETURN(const Json reply, connection_->ask("frontier", {{"id", id_}}));
  return json_field<Json>(reply, "frontier", "reply");
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
  return fmt::format(
      "{}\n\nsearch {}: {} effective bits (budget {}), summed KL {:.4e} nats a token, {}",
      table.text(), assignment.at("search").get<std::string>(),
      bits_text(assignment.at("effective_bits")),
      bits_text(assignment.at("budget").at("effective_bits")),
      assignment.at("objective_kl_nats").get<double>(),
      proven ? "proven optimal" : fmt::format("gap {:.2g}", assignment.value("gap", 0.0)));
}

}  // namespace bitalloc::cli
