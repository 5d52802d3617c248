// The service of a local home, from the side of a command: joins the one that runs, or starts it.
//
// While a LocalService lives, the service stays up; with the last one it stops, and the destructor
// of that one waits until it has. One thread.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "ops/cli/file_lock.h"
#include "ops/cli/local_paths.h"
#include "ops/cli/supervisor.h"

namespace bitalloc::cli {

class LocalService {
 public:
  // `doors`: what is to be open when this command starts the service; nothing asked for: as it is.
  // Errors: kInvalidArgument when the home cannot be used, kUnavailable with the supervisor's
  // reason when a part does not start, or when the service runs already with other doors.
  static Result<std::unique_ptr<LocalService>> attach(const std::filesystem::path& home,
                                                      const DoorRequest& doors = {});
  ~LocalService();
  LocalService(const LocalService&) = delete;
  LocalService& operator=(const LocalService&) = delete;

  // Starts the service, and the workers asked for, again when its supervisor was killed; waits
  // until the coordinator listens. Cheap when all is well. Errors: kUnavailable with the reason
  // when the supervisor gave up.
  Status ensure();

  // Makes sure that at least `request.count` workers run. When some run already they stay as they
  // are and only missing ones are added.
  Status want_workers(const WorkerRequest& request);

  // Makes sure that the coordinator serves HTTP as asked; makes the file of its token when there is
  // none. Errors: kInvalidArgument when the address is none or is taken, kUnavailable when nothing
  // answers there in time.
  Status want_http(const HttpRequest& request);

  const LocalPaths& paths() const { return paths_; }
  std::string endpoint() const { return paths_.client_endpoint(); }

 private:
  LocalService(LocalPaths paths, DoorRequest doors, FileLock clients)
      : paths_(std::move(paths)), doors_(std::move(doors)), clients_(std::move(clients)) {}

  Status start_if_missing();
  Status wait_until_running();
  void wait_until_stopped();

  Status check_doors(const Json& service) const;

  LocalPaths paths_;
  DoorRequest doors_;
  FileLock clients_;
  WorkerRequest wanted_;
  HttpRequest wanted_http_;
};

// Somebody supervises this home now.
bool is_supervised(const LocalPaths& paths);

// What the supervisor last wrote to run/service.json; null when there is none.
Json read_service_file(const LocalPaths& paths);

}  // namespace bitalloc::cli
