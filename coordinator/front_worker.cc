// The worker's side of the front: messages of wire.h into events.
#include <spdlog/spdlog.h>

#include "common/protocol.h"
#include "coordinator/front.h"

namespace bitalloc {
namespace {

constexpr size_t kMaxHeldUnits = 1'024;  // in one heartbeat
constexpr size_t kMaxInfoBytes = 8'192;  // of a hello, kept for `workers`
constexpr size_t kAdmission = 8'192;     // changes that must fit into the store for a result

struct UnitFields {
  std::string search;
  UnitId unit;
  Fence fence;
};

Result<UnitFields> unit_fields(const Json& header, const std::string& where) {
  UnitFields fields;
  BA_ASSIGN_OR_RETURN(fields.search, json_field<std::string>(header, "search", where));
  BA_ASSIGN_OR_RETURN(const auto unit, json_field<std::string>(header, "unit", where));
  BA_ASSIGN_OR_RETURN(fields.unit, parse_unit_name(unit));
  BA_ASSIGN_OR_RETURN(fields.fence.value, json_field<int64_t>(header, "fence", where));
  return fields;
}

// The weights that a worker says it holds now, when it says so.
Result<std::optional<std::vector<std::string>>> models_field(const Json& header) {
  if (!header.contains("models")) return std::optional<std::vector<std::string>>();
  BA_ASSIGN_OR_RETURN(auto models,
                      json_field<std::vector<std::string>>(header, "models", "header"));
  return std::optional(std::move(models));
}

}  // namespace

void Front::send_worker(const WorkerEpoch& epoch, const wire::Message& message) {
  const auto peer = worker_peers_.find(epoch);
  if (peer != worker_peers_.end()) workers_.send(message, peer->second);
}

void Front::on_worker(Socket::Received received) {
  if (stopped_) return;
  const auto refuse = [&](const Error& error) {
    spdlog::warn("worker message '{}' refused: {}", received.message.type, error.message);
    workers_.send(wire::error_reply(received.message, error), received.peer);
  };
  if (received.error) return refuse(*received.error);
  const auto epoch = json_field<std::string>(received.message.header, "epoch", "header");
  if (!epoch.ok()) return refuse(epoch.error());
  if (epoch->empty() || epoch->size() > 128) {
    return refuse(invalid_argument("header.epoch must have 1 to 128 bytes", "epoch"));
  }
  worker_peers_[WorkerEpoch(*epoch)] = received.peer;
  const Status status = dispatch_worker(received.message, received.peer, WorkerEpoch(*epoch));
  if (!status.ok()) refuse(status.error());
}

Status Front::dispatch_worker(const wire::Message& message, const std::string& peer,
                              const WorkerEpoch& epoch) {
  if (message.type == "hello") return on_hello(message, peer, epoch);
  if (message.type == "result") return on_result(message, epoch);
  if (message.type == "fail") return on_fail(message, peer, epoch);
  if (message.type == "give_back") {
    BA_ASSIGN_OR_RETURN(const UnitFields fields, unit_fields(message.header, "give_back"));
    apply(event::WorkerGiveBack{epoch, fields.search, fields.unit, fields.fence});
    return {};
  }
  if (message.type == "bye") {
    workers_.send(wire::ok_reply(message), peer);
    apply(event::WorkerBye{epoch});
    worker_peers_.erase(epoch);
    return {};
  }
  if (message.type != "ready" && message.type != "heartbeat") {
    return unsupported(fmt::format("workers cannot say '{}'", message.type), "type");
  }
  if (!queue_.workers().contains(epoch)) {
    return not_found(fmt::format("worker {} is not known here", epoch.value), "epoch",
                     "say hello again");
  }
  if (message.type == "heartbeat") return on_heartbeat(message, peer, epoch);
  BA_ASSIGN_OR_RETURN(const auto credits, json_field<int64_t>(message.header, "credits", "ready"));
  BA_ASSIGN_OR_RETURN(auto models, models_field(message.header));
  apply(event::WorkerReady{epoch, credits, std::move(models)});
  return {};
}

Status Front::on_hello(const wire::Message& message, const std::string& peer,
                       const WorkerEpoch& epoch) {
  BA_ASSIGN_OR_RETURN(const int protocol, choose_protocol(message.header, "worker " + epoch.value));
  Json info = message.header;
  if (info.dump().size() > kMaxInfoBytes) {
    info = Json::object();
    for (const char* name :
         {"host", "pid", "device", "threads", "tp", "memory_bytes", "numerics_version"}) {
      if (message.header.contains(name) && message.header[name].dump().size() < 256) {
        info[name] = message.header[name];
      }
    }
  }
  const bool known = queue_.workers().contains(epoch);
  apply(event::WorkerHello{epoch, std::move(info)});
  if (!queue_.workers().contains(epoch)) {
    return resource_exhausted("there are too many workers already", "epoch");
  }
  if (!known) spdlog::info("worker {} is here", epoch.value);
  workers_.send(wire::ok_reply(message, {{"protocol", protocol},
                                         {"heartbeat_ms", wire::kHeartbeatMs},
                                         {"liveness", wire::kLiveness}}),
                peer);
  return {};
}

Status Front::on_heartbeat(const wire::Message& message, const std::string& peer,
                           const WorkerEpoch& epoch) {
  BA_ASSIGN_OR_RETURN(const Json units,
                      json_field_or<Json>(message.header, "units", "heartbeat", Json::array()));
  if (!units.is_array() || units.size() > kMaxHeldUnits) {
    return invalid_argument("heartbeat.units is not a list of at most 1024", "units");
  }
  event::WorkerHeartbeat heartbeat{epoch, {}, {}};
  BA_ASSIGN_OR_RETURN(heartbeat.models, models_field(message.header));
  for (const Json& row : units) {
    BA_ASSIGN_OR_RETURN(const UnitFields fields, unit_fields(row, "heartbeat.units"));
    heartbeat.units.push_back({fields.search, fields.unit, fields.fence});
  }
  workers_.send({"heartbeat", message.correlation_id, Json::object(), {}}, peer);
  apply(heartbeat);
  return {};
}

Status Front::on_result(const wire::Message& message, const WorkerEpoch& epoch) {
  // Full policy: the result is not taken, so not acknowledged, so the worker sends it again.
  if (!store_.has_room(kAdmission)) return {};
  BA_ASSIGN_OR_RETURN(const UnitFields fields, unit_fields(message.header, "result"));
  if (message.blobs.size() != 1) return invalid_argument("a result is one blob", "blobs");
  event::WorkerResult event;
  BA_ASSIGN_OR_RETURN(event.seconds,
                      json_field_or<double>(message.header, "seconds", "result", 0.0));
  Result<UnitResult> result = unpack_unit_result(fields.unit, message.blobs[0]);
  if (!result.ok()) {
    // The worker would send it for ever: the unit is taken from it and counts as failed there.
    perform(action::SendRevoke{epoch, fields.search, fields.unit, fields.fence});
    apply(event::WorkerFail{epoch, fields.search, fields.unit, fields.fence, result.error(), true});
    return result.error();
  }
  event.result = std::move(result).value();
  if (message.header.contains("numerics_version")) {
    BA_ASSIGN_OR_RETURN(event.numerics_version,
                        json_field<int64_t>(message.header, "numerics_version", "result"));
  }
  // A search may have been deleted and another one submitted under its name meanwhile.
  BA_ASSIGN_OR_RETURN(const auto computed_for,
                      json_field_or<std::string>(message.header, "fingerprint", "result", ""));
  const Search* search = queue_.find(fields.search);
  if (search != nullptr && !computed_for.empty() && computed_for != search->fingerprint.sha256) {
    perform(action::SendRevoke{epoch, fields.search, fields.unit, fields.fence});
    return {};
  }
  event.worker = epoch;
  event.search = fields.search;
  event.fence = fields.fence;
  event.correlation_id = message.correlation_id;
  apply(event);
  return {};
}

Status Front::on_fail(const wire::Message& message, const std::string& peer,
                      const WorkerEpoch& epoch) {
  BA_ASSIGN_OR_RETURN(const UnitFields fields, unit_fields(message.header, "fail"));
  BA_ASSIGN_OR_RETURN(const Json error, json_field<Json>(message.header, "error", "fail"));
  BA_ASSIGN_OR_RETURN(const bool retryable,
                      json_field_or<bool>(message.header, "retryable", "fail", false));
  workers_.send(wire::ok_reply(message), peer);
  apply(event::WorkerFail{epoch, fields.search, fields.unit, fields.fence, error_from_json(error),
                          retryable});
  return {};
}

}  // namespace bitalloc
