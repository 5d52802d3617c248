// The client's side of the front: requests of wire.h into events and answers.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include "common/json_text.h"

#include "common/protocol.h"
#include "coordinator/front.h"
#include "coordinator/report.h"
#include "solver/allocate.h"

namespace bitalloc {
namespace {

constexpr size_t kMaxRequests = 1'024;  // that wait for the store or a background thread
constexpr size_t kMaxWatches = 4'096;
constexpr size_t kMaxBudgets = 256;   // in one rebudget
constexpr size_t kAdmission = 8'192;  // changes that must fit into the store for a request
constexpr TimeMs kWatchGapMs = 200;
constexpr TimeMs kWatchForgottenMs = 30'000;
// Of a reply's header: the rest is for what surrounds the payload.
constexpr size_t kMaxReplyBytes = wire::kMaxHeaderBytes - 4'096;

Result<Json> checked_size(Json header) {
  const size_t bytes = json_text(header).size();
  if (bytes <= kMaxReplyBytes) return header;
  return resource_exhausted(
      fmt::format("the answer has {} bytes, more than a message may have", bytes), "",
      "take the checkpoint (`bitalloc checkpoint export ID FILE`) and ask it with --checkpoint");
}

}  // namespace

void Front::on_client(Socket::Received received) {
  if (stopped_) return;
  const Status status =
      received.error ? Status(*received.error) : dispatch_client(received.message, received.peer);
  if (!status.ok()) reply(received.message, received.peer, status.error());
}

Status Front::dispatch_client(wire::Message& message, const std::string& peer) {
  const std::string& type = message.type;
  if (type == "submit" || type == "import") return on_submit(message, peer);
  if (type == "cancel" || type == "pause" || type == "resume" || type == "reprioritize") {
    return on_change(message, peer);
  }
  if (type == "delete") return on_delete(message, peer);
  if (type == "watch") return on_watch(message, peer);
  if (type == "rebudget") return on_rebudget(message, peer);
  if (type == "assignment") return on_assignment(message, peer);
  if (type == "checkpoint") return on_checkpoint(message, peer);
  if (type == "frontier") {
    return solve_later(message, peer, [](const Checkpoint& c) -> Result<Json> {
      BA_ASSIGN_OR_RETURN(Json points, frontier_json(c.id, c.spec, c.table));
      return Json{{"frontier", std::move(points)}};
    });
  }
  if (type == "scores") {
    return solve_later(message, peer, [](const Checkpoint& c) -> Result<Json> {
      BA_ASSIGN_OR_RETURN(Json rows, validation_json(c.id, c.spec, c.table));
      return Json{{"rows", std::move(rows)}};
    });
  }
  if (type == "info") {
    BA_ASSIGN_OR_RETURN(const int protocol, choose_protocol(message.header, "client"));
    Json info = info_json();
    info["protocol"] = protocol;
    reply(message, peer, std::move(info));
  } else if (type == "list") {
    reply(message, peer, list_json());
  } else if (type == "workers") {
    reply(message, peer, checked_size({{"workers", workers_json(queue_, steady_now_ms())}}));
  } else if (type == "status") {
    BA_ASSIGN_OR_RETURN(const Search* search, named_search(message));
    reply(message, peer, status_of(*search));
  } else {
    return unsupported(fmt::format("there is no request '{}'", type), "type",
                       "use client and coordinator of one release");
  }
  return {};
}

// ---- answers ------------------------------------------------------------------------------------

void Front::reply(const wire::Message& message, const std::string& peer,
                  const Result<Json>& header) {
  send_client(
      header.ok() ? wire::ok_reply(message, *header) : wire::error_reply(message, header.error()),
      peer);
}

uint64_t Front::remember(const wire::Message& message, const std::string& peer) {
  const uint64_t id = next_request_++;
  requests_[id] = Request{peer, {message.type, message.correlation_id, message.header, {}}};
  return id;
}

void Front::answer(uint64_t request, const Result<Json>& header) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;
  reply(found->second.message, found->second.peer, header);
  requests_.erase(found);
}

Result<const Search*> Front::named_search(const wire::Message& message) const {
  BA_ASSIGN_OR_RETURN(const auto id, json_field<std::string>(message.header, "id", message.type));
  const Search* search = queue_.find(id);
  if (search != nullptr) return search;
  return not_found(fmt::format("there is no search '{}'", id), "id",
                   "`bitalloc list` shows what there is");
}

Json Front::status_of(const Search& search) const {
  return status_json(queue_, search, steady_now_ms());
}

Json Front::info_json() const {
  return {{"version", BITALLOC_VERSION},
          {"protocols", spoken_protocols()},
          {"numerics_version", kNumericsVersion},
          {"redis",
           {{"durable", options_.store_durable},
            {"detail",
             queue_.store_lost() ? "lost: " + queue_.store_reason() : options_.store_detail}}},
          {"workers", queue_.workers().size()},
          {"model_switches", queue_.model_switches()},
          {"searches", queue_.searches().size()},
          {"pid", ::getpid()}};
}

// By age; when they do not fit into one message, the oldest are left out and counted.
Json Front::list_json() const {
  std::vector<const Search*> order;
  for (const auto& [id, search] : queue_.searches()) order.push_back(&search);
  std::sort(order.begin(), order.end(), [](const Search* a, const Search* b) {
    return std::tie(a->created_unix, a->id) > std::tie(b->created_unix, b->id);
  });
  std::vector<Json> rows;
  size_t bytes = 0;
  for (const Search* search : order) {
    Json row = status_of(*search);
    bytes += json_text(row).size() + 1;
    if (bytes > kMaxReplyBytes) break;
    rows.push_back(std::move(row));
  }
  const size_t omitted = order.size() - rows.size();
  std::reverse(rows.begin(), rows.end());
  return {{"searches", std::move(rows)}, {"omitted", omitted}};
}

// ---- changes ------------------------------------------------------------------------------------

Status Front::on_submit(wire::Message& message, const std::string& peer) {
  if (requests_.size() >= kMaxRequests || !store_.has_room(kAdmission)) {
    return unavailable("too many requests are waiting", "", "try again in a moment");
  }
  const uint64_t request = remember(message, peer);
  const bool is_import = message.type == "import";
  auto job = [this, request, is_import, header = message.header,
              blobs = std::move(message.blobs)]() -> Background::Completion {
    Result<Submission> parsed =
        is_import ? parse_import(header, blobs) : parse_submit(header, blobs);
    if (parsed.ok()) {
      const Status place = options_.model_roots.check_name(parsed->record.spec.model.path);
      if (!place.ok()) parsed = place.error();
    }
    if (!parsed.ok()) {
      return [this, request, error = parsed.error()] { answer(request, error); };
    }
    parsed->record.created_unix = static_cast<int64_t>(std::time(nullptr));
    return [this, request, submission = std::move(parsed).value()] {
      if (stopped_) return;
      apply(event::Submit{request, submission.record, submission.tokens});
    };
  };
  if (!checker_.submit(std::move(job))) {
    requests_.erase(request);
    return unavailable("too many submissions are waiting", "", "try again in a moment");
  }
  return {};
}

Status Front::on_change(const wire::Message& message, const std::string& peer) {
  using Kind = event::Change::Kind;
  if (!store_.has_room(kAdmission)) return unavailable("too many requests are waiting");
  event::Change change;
  BA_ASSIGN_OR_RETURN(change.search, json_field<std::string>(message.header, "id", message.type));
  if (message.type == "pause") change.kind = Kind::kPause;
  if (message.type == "resume") change.kind = Kind::kResume;
  if (message.type == "cancel") change.kind = Kind::kCancel;
  if (message.type == "reprioritize") {
    change.kind = Kind::kReprioritize;
    BA_ASSIGN_OR_RETURN(change.priority,
                        json_field<int64_t>(message.header, "priority", message.type));
  }
  change.request = remember(message, peer);
  apply(change);
  return {};
}

Status Front::on_delete(const wire::Message& message, const std::string& peer) {
  if (!store_.has_room(kAdmission)) return unavailable("too many requests are waiting");
  BA_ASSIGN_OR_RETURN(const auto id, json_field<std::string>(message.header, "id", "delete"));
  apply(event::Delete{remember(message, peer), id});
  return {};
}

// ---- watching -----------------------------------------------------------------------------------

Status Front::on_watch(const wire::Message& message, const std::string& peer) {
  BA_ASSIGN_OR_RETURN(const Search* search, named_search(message));
  const auto key = std::make_pair(peer, message.correlation_id);
  if (watches_.size() >= kMaxWatches && !watches_.contains(key)) {
    return unavailable("too many clients are watching");
  }
  Watch& watch = watches_[key];
  watch.search = search->id;
  watch.asked = steady_now_ms();
  tell_watchers();
  return {};
}

void Front::tell_watchers() {
  const TimeMs now = steady_now_ms();
  for (auto it = watches_.begin(); it != watches_.end();) {
    const auto& [peer, correlation_id] = it->first;
    Watch& watch = it->second;
    const wire::Message request{"watch", correlation_id, Json::object(), {}};
    const Search* search = queue_.find(watch.search);
    if (search == nullptr) {
      reply(request, peer, not_found(fmt::format("search '{}' was deleted", watch.search), "id"));
      it = watches_.erase(it);
    } else if (has_ended(search->status.state)) {
      reply(request, peer, status_of(*search));
      it = watches_.erase(it);
    } else if (now - watch.asked > kWatchForgottenMs && !is_local(peer)) {
      it = watches_.erase(it);
    } else {
      if (watch.changed && now - watch.told >= kWatchGapMs) {
        send_client({"event", correlation_id, {{"status", status_of(*search)}}, {}}, peer);
        watch.told = now;
        watch.changed = false;
      }
      ++it;
    }
  }
}

// ---- solving ------------------------------------------------------------------------------------

Front::Snapshot Front::snapshot(const Search& search) {
  Snapshot& kept = snapshots_[search.id];
  if (kept == nullptr) {
    kept = std::make_shared<const Checkpoint>(
        Checkpoint{search.id, search.spec, search.fingerprint, search.table});
  }
  return kept;
}

Status Front::solve_later(const wire::Message& message, const std::string& peer, Answer answer) {
  BA_ASSIGN_OR_RETURN(const Search* search, named_search(message));
  if (requests_.size() >= kMaxRequests) return unavailable("too many requests are waiting");
  const uint64_t request = remember(message, peer);
  auto job = [this, request, copy = snapshot(*search),
              answer = std::move(answer)]() -> Background::Completion {
    Result<Json> header = answer(*copy);
    if (header.ok()) header = checked_size(std::move(header).value());
    return [this, request, header = std::move(header)] { this->answer(request, header); };
  };
  if (!solver_.submit(std::move(job))) {
    requests_.erase(request);
    return unavailable("too many questions are waiting for the solver", "",
                       "try again in a moment");
  }
  return {};
}

Status Front::on_rebudget(const wire::Message& message, const std::string& peer) {
  BA_ASSIGN_OR_RETURN(const auto budgets,
                      json_field<std::vector<double>>(message.header, "budgets", "rebudget"));
  BA_ASSIGN_OR_RETURN(const auto pins, json_field_or<Pins>(message.header, "pins", "rebudget", {}));
  if (budgets.empty() || budgets.size() > kMaxBudgets) {
    return invalid_argument(fmt::format("ask for 1 to {} budgets", kMaxBudgets), "budgets");
  }
  return solve_later(message, peer, [this, budgets, pins](const Checkpoint& c) -> Result<Json> {
    Json assignments = Json::array();
    for (const double bits : budgets) {
      BA_ASSIGN_OR_RETURN(Json assignment,
                          allocate(c.id, c.spec, c.fingerprint, c.table, bits, pins, false,
                                   /*partial=*/false, &reprover_));
      assignments.push_back(std::move(assignment));
    }
    return Json{{"assignments", std::move(assignments)}};
  });
}

Status Front::on_assignment(const wire::Message& message, const std::string& peer) {
  const Json& header = message.header;
  BA_ASSIGN_OR_RETURN(const Search* search, named_search(message));
  BA_ASSIGN_OR_RETURN(const auto bits, json_field_or<double>(header, "effective_bits", "assignment",
                                                             search->spec.effective_bits));
  BA_ASSIGN_OR_RETURN(const bool scores,
                      json_field_or<bool>(header, "scores", "assignment", false));
  BA_ASSIGN_OR_RETURN(const bool partial,
                      json_field_or<bool>(header, "partial", "assignment", false));
  BA_ASSIGN_OR_RETURN(const auto pins, json_field_or<Pins>(header, "pins", "assignment", {}));
  if (bits == 0 && search->spec.kind == JobKind::kSearch) {
    return invalid_argument(fmt::format("search '{}' was submitted without a budget", search->id),
                            "effective_bits", "name one: --bits B");
  }
  return solve_later(message, peer, [=, this](const Checkpoint& c) -> Result<Json> {
    BA_ASSIGN_OR_RETURN(Json assignment, allocate(c.id, c.spec, c.fingerprint, c.table, bits, pins,
                                                  scores, partial, &reprover_));
    return Json{{"assignment", std::move(assignment)}};
  });
}

Status Front::on_checkpoint(const wire::Message& message, const std::string& peer) {
  BA_ASSIGN_OR_RETURN(const Search* search, named_search(message));
  const wire::Message request{message.type, message.correlation_id, Json::object(), {}};
  const bool taken = checker_.submit([this, request, peer, copy = snapshot(*search)] {
    std::string text = serialize(*copy);
    return [this, request, peer, text = std::move(text)] {
      if (text.size() > wire::kMaxBlobBytes) {
        reply(request, peer,
              resource_exhausted("the checkpoint is larger than a message may be", "",
                                 "take the file that --checkpoint-dir has"));
        return;
      }
      wire::Message message = wire::ok_reply(request);
      message.blobs.push_back(text);
      send_client(message, peer);
    };
  });
  return taken ? Status() : Status(unavailable("too much to do", "", "try again in a moment"));
}

}  // namespace bitalloc
