// Who may do what: the allow-list of public keys, and what each role may say.
//
// | role   | at the clients' door                                                      |
// | ------ | ------------------------------------------------------------------------- |
// | viewer | info list status watch workers assignment frontier scores rebudget checkpoint |
// | client | these, and submit import cancel pause resume reprioritize                  |
// | admin  | everything: these, delete, and whatever the table does not know            |
// | worker | nothing there; everything at the workers' door, where nobody else gets in  |
//
// A key that leaves the list is refused at once: handshakes, and every further message of
// connections that are open. Its worker loses its leases as if it had died.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "common/zmq/keys.h"

namespace bitalloc {

enum class Door { kClients, kWorkers };

// The name by which a door's socket asks the ZAP handler.
const char* zap_domain(Door door);

// Whether `role` may connect to `door` at all.
bool may_enter(KeyRole role, Door door);

// Whether `role` may send a message of this type to `door`. Errors: kInvalidArgument (field "key")
// with the role that it takes.
Status check_message(KeyRole role, Door door, const std::string& type);

// The keys of a file, read again when the file changes. Any thread.
class AccessList {
 public:
  struct Holder {
    KeyRole role;
    std::string name;
  };

  // Errors: those of read_allow_list.
  static Result<std::unique_ptr<AccessList>> open(std::filesystem::path file);

  // Reads the file if it is not the one that was read last (`force`: in any case). A file that is
  // missing or malformed is logged once, and the list stays as it was.
  void refresh(bool force = false);

  // Nothing when the key is not allowed.
  std::optional<Holder> find(const std::string& public_key) const;
  size_t size() const;
  const std::filesystem::path& file() const { return file_; }

 private:
  using Keys = std::unordered_map<std::string, Holder>;
  struct Version {  // of the file
    uint64_t inode = 0;
    int64_t changed_ns = 0;
    int64_t size_bytes = -1;
    bool operator==(const Version&) const = default;
  };

  explicit AccessList(std::filesystem::path file) : file_(std::move(file)) {}
  Version version() const;

  const std::filesystem::path file_;
  std::mutex refreshing_;  // one at a time: an older content must not replace a newer one
  Version read_;           // guarded by refreshing_
  mutable std::mutex mutex_;
  Keys keys_;  // guarded by mutex_, by public key
};

}  // namespace bitalloc
