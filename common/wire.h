// The wire protocol: frames, message types and their schemas. No sockets here (see common/zmq/).
//
// Frames, client and worker alike: [empty]["BA1"][type][correlation id][json header][blob…].
// A reply carries the correlation id of its request and the type `ok` or `error`; `error`'s header
// is {"code", "message", "field", "hint"} (json.h). Unknown header fields are ignored; unknown
// types and versions get an `error` reply. Numbers in blobs are little-endian.
//
// Client → coordinator. "search status" is the object of `status --json` in the manual:
// {"id", "kind", "state", "units": {"total", "done", "leased", "failed", "retrying", "speculated"},
//  "progress", "eta_seconds": [low, high] or null, "error": null or {…}, "failed_units": [{"unit",
//  "attempts", "losses", "worker", "error"}] (the first 20), "fingerprint", "priority", "share",
//  "model", "created_unix", "why_pending": text or null}.
//   info          {"protocol": [versions]} (protocol.h) → {"version", "protocol" (the chosen one),
//                  "protocols", "numerics_version", "redis": {"durable", "detail"}, "workers": n,
//                  "model_switches": n, "searches": n, "pid"}
//   submit        {"id" (may be empty), "spec", "priority" (0 default), "share" (1 default)}
//                 blobs: ids int32 [sequences × length], mask uint8, then the same two for the
//                 calibration tokens when spec.calibration_sequences > 0.
//                 → search status + {"created": bool}. The same id and fingerprint: the search that
//                 is there. Empty id: one derived from the model's name and the fingerprint.
//                 The same id with another fingerprint: error `mismatch` naming what differs.
//                 A cancelled or failed search submitted again goes on where it stopped; units that
//                 are set aside get new attempts, as they do on resume.
//   import        {} blob: a checkpoint file → search status; refused like submit on a mismatch.
//                 The search has no tokens: it can be re-budgeted; submit with tokens resumes it.
//   list          {} → {"searches": [search status…]}
//   status        {"id"} → search status
//   watch         {"id"} → any number of `event` replies ({"status": search status}), at most 5 a
//                 second, on every change; `ok` with the status when the search has ended. A client
//                 repeats `watch` (same correlation id) at least every 10 s or is forgotten at 30
//                 s.
//   cancel, pause, resume  {"id"} → search status
//   reprioritize  {"id", "priority"} → search status
//   rebudget      {"id", "budgets": [bits…], "pins": {site: candidate}, "scores", "partial",
//   "smooth":
//                 bools, "confidence": true or {"resamples", "seed", "threshold"} (one budget
//                 then)} → {"assignments": […]}; all but id and budgets may be left out
//   assignment    {"id", "effective_bits" (null: the one asked at submit), the rest as above}
//                 → {"assignment": {…}}, the object of `assignment --json` (solver/allocate.h)
//   frontier      {"id", "partial": bool} → {"frontier": […], "exact", "sites", "scored_sites",
//                 "partial"} (solver/allocate.h). Too long for a message: error resource_exhausted;
//                 the checkpoint has what it takes to make it
//   scores        {"id"} → {"rows": [{"row", "metrics": [Score…]}…]}; of a validation
//   checkpoint    {"id"} → {} blob: the checkpoint file
//   workers       {} → {"workers": [{"epoch", "host", "pid", "device", "state", "units",
//                  "models", "model_switches", …}]}
//   delete        {"id"} → {}
//
// Worker → coordinator (one DEALER a worker; identity is in the message, never the socket's):
//   hello         {"epoch", "protocol": [versions], "numerics_version", "host", "pid", "device",
//                  "threads", "tp", "memory_bytes", "versions": {…}, "models": [weights_sha256…]}
//                  → `ok` {"protocol" (the chosen one), "heartbeat_ms", "liveness"}, or `error`
//                  unsupported that says which side to update
//   ready         {"epoch", "credits", "models"}: how many more units the worker takes now
//                  (absolute), and which models it holds now
//   heartbeat     {"epoch", "units": [{"search", "unit", "fence"}], "models"} → `heartbeat` {}; a
//                  unit listed is renewed; an unknown epoch gets `error` not_found: say hello again
//   result        {"epoch", "search", "unit", "fence", "seconds", "numerics_version",
//                  "fingerprint" of the search's spec}, blob: pack(UnitResult)
//                  → `ack` {"search", "unit", "fence"} once Redis has it on disk
//   fail          {"epoch", "search", "unit", "fence", "error": {…}, "retryable": bool} → `ok`
//   give_back     {"epoch", "search", "unit", "fence"}: it has not begun the unit and will not
//   bye           {"epoch"} → `ok`
// Coordinator → worker:
//   unit          {"search", "unit", "fence", "lease_ms", "spec"} blobs: ids, mask of the batch,
//                  amax float32 [sites × 2] (kScore)
//   revoke        {"search", "unit", "fence"}: stop within one layer's time, no result wanted
//   drain         {}: finish what you hold, then bye
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace bitalloc::wire {

inline constexpr std::string_view kVersion = "BA1";
inline constexpr size_t kMaxHeaderBytes = size_t{1} << 20;
inline constexpr size_t kMaxBlobBytes = size_t{64} << 20;
inline constexpr size_t kMaxFrames = 16;
inline constexpr size_t kMaxHeaderValues = 200'000;  // objects, lists, numbers, …, at any depth

// Heartbeats both ways; a peer unheard for `kLiveness` of them is gone.
inline constexpr int kHeartbeatMs = 1000;
inline constexpr int kLiveness = 5;

struct Message {
  std::string type;
  std::string correlation_id;  // at most 128 bytes
  Json header = Json::object();
  std::vector<std::string> blobs;
  // Only sent: more fields of the header, as the inside of a JSON object (`"a":1,"b":[]`), for what
  // goes out often and takes long to write.
  std::string more_fields{};
};

// The frames of `message`, the empty delimiter first.
std::vector<std::string> encode(const Message& message);

// The inverse. Errors: kInvalidArgument (bad frames or JSON), kUnsupported (another version),
// kResourceExhausted (beyond a size limit). `partial`, when given, receives type and correlation id
// as far as they could be read, so that an error reply finds its way.
Result<Message> decode(const std::vector<std::string_view>& frames, Message* partial = nullptr);

Message ok_reply(const Message& request, Json header = Json::object());
Message error_reply(const Message& request, const Error& error);
// The error that an `error` message carries.
Error error_of(const Message& message);

}  // namespace bitalloc::wire
