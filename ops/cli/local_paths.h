// Where local mode keeps things below its home.
#pragma once

#include <filesystem>
#include <string>

#include "common/status.h"

namespace bitalloc::cli {

struct LocalPaths {
  std::filesystem::path home;      // absolute
  std::filesystem::path redis;     // append-only file and configuration
  std::filesystem::path run;       // locks, process files, service.json
  std::filesystem::path searches;  // ID.checkpoint.json
  std::filesystem::path logs;
  std::filesystem::path cache;  // tokens, by content
  std::filesystem::path
      sockets;  // `run`, or a private folder in /tmp when `run` is too long a name

  std::filesystem::path clients_lock() const { return run / "clients.lock"; }
  std::filesystem::path start_lock() const { return run / "start.lock"; }
  std::filesystem::path supervisor_lock() const { return run / "supervisor.lock"; }
  std::filesystem::path redis_lock() const { return redis / "writer.lock"; }
  std::filesystem::path service_file() const { return run / "service.json"; }
  std::filesystem::path workers_file() const { return run / "workers.json"; }
  std::filesystem::path http_file() const { return run / "http.json"; }
  std::filesystem::path http_token() const { return home / "http.token"; }
  std::filesystem::path process_file(const std::string& name) const {
    return run / (name + ".pid");
  }
  // Where rank 0 of a worker of several says how to reach it.
  std::filesystem::path rendezvous_file(const std::string& worker) const {
    return run / (worker + ".rendezvous");
  }
  std::filesystem::path log(const std::string& name) const { return logs / (name + ".log"); }
  std::filesystem::path checkpoint(const std::string& id) const {
    return searches / (id + ".checkpoint.json");
  }
  std::filesystem::path redis_socket() const { return sockets / "redis.sock"; }
  std::filesystem::path client_socket() const { return sockets / "client.sock"; }
  std::filesystem::path worker_socket() const { return sockets / "worker.sock"; }
  std::string client_endpoint() const { return "ipc://" + client_socket().string(); }
  std::string worker_endpoint() const { return "ipc://" + worker_socket().string(); }
};

// The names only; nothing is made.
LocalPaths local_paths(const std::filesystem::path& home);

// Makes the folders, for the user alone. Errors: kInvalidArgument (field = the folder) when that is
// not possible, or when somebody else owns the folder for sockets.
Status make_folders(const LocalPaths& paths);

}  // namespace bitalloc::cli
