#include "coordinator/access.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <set>

namespace bitalloc {
namespace {

const std::set<std::string> kReading = {"info",     "list",      "status",     "watch",
                                        "workers",  "scores",    "assignment", "frontier",
                                        "rebudget", "checkpoint"};
const std::set<std::string> kChanging = {"submit", "import", "cancel",
                                         "pause",  "resume", "reprioritize"};

// The least that `type` takes at the clients' door.
KeyRole needed_role(const std::string& type) {
  if (kReading.contains(type)) return KeyRole::kViewer;
  return kChanging.contains(type) ? KeyRole::kClient : KeyRole::kAdmin;
}

int rank(KeyRole role) {
  switch (role) {
    case KeyRole::kViewer:
      return 1;
    case KeyRole::kClient:
      return 2;
    case KeyRole::kAdmin:
      return 3;
    case KeyRole::kServer:
    case KeyRole::kWorker:
      return 0;
  }
  return 0;
}

}  // namespace

const char* zap_domain(Door door) {
  return door == Door::kClients ? "bitalloc-clients" : "bitalloc-workers";
}

bool may_enter(KeyRole role, Door door) {
  return door == Door::kWorkers ? role == KeyRole::kWorker : rank(role) > 0;
}

Status check_message(KeyRole role, Door door, const std::string& type) {
  if (door == Door::kWorkers && role == KeyRole::kWorker) return {};
  const KeyRole needed = door == Door::kWorkers ? KeyRole::kWorker : needed_role(type);
  if (door == Door::kClients && rank(role) >= rank(needed)) return {};
  return invalid_argument(fmt::format("'{}' takes a key with the role {}; this one is a {}'s", type,
                                      key_role_name(needed), key_role_name(role)),
                          "key", "use another key, or ask the operator for one");
}

Result<std::unique_ptr<AccessList>> AccessList::open(std::filesystem::path file) {
  BA_RETURN_IF_ERROR(read_allow_list(file));
  std::unique_ptr<AccessList> list(new AccessList(std::move(file)));
  list->refresh();
  return list;
}

// Whoever edits in place within the clock's grain and keeps the size is not seen; `bitalloc keys`
// and editors make a new file.
AccessList::Version AccessList::version() const {
  struct stat state = {};
  if (::stat(file_.c_str(), &state) != 0) return {};
  return {state.st_ino, state.st_mtim.tv_sec * 1'000'000'000 + state.st_mtim.tv_nsec,
          state.st_size};
}

void AccessList::refresh(bool force) {
  const std::lock_guard one_at_a_time(refreshing_);
  const Version now = version();
  if (now == read_ && !force) return;
  read_ = now;
  const Result<std::vector<NamedKey>> listed = read_allow_list(file_);
  if (!listed.ok()) {
    spdlog::error("the keys stay as they were: {}", listed.error().message);
    return;
  }
  Keys keys;
  for (const NamedKey& key : *listed) keys[key.key] = {key.role, key.name};
  spdlog::info("{} keys in {}", keys.size(), file_.string());
  const std::lock_guard lock(mutex_);
  keys_ = std::move(keys);
}

std::optional<AccessList::Holder> AccessList::find(const std::string& public_key) const {
  const std::lock_guard lock(mutex_);
  const auto found = keys_.find(public_key);
  return found == keys_.end() ? std::nullopt : std::optional(found->second);
}

size_t AccessList::size() const {
  const std::lock_guard lock(mutex_);
  return keys_.size();
}

}  // namespace bitalloc
