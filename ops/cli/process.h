// Starting, watching and ending processes of our own.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace bitalloc::cli {

struct SpawnOptions {
  std::vector<std::string> arguments;  // the program first
  std::filesystem::path output;        // stdout and stderr are appended there; empty: inherited
  int keep_descriptor = -1;            // the one descriptor that the child keeps besides 0, 1, 2
  bool detach = false;                 // own session, not our child: outlives us and our terminal
  bool die_with_parent = false;        // SIGKILL when the calling thread's process ends
};

// The new process's id (0 when detached). Errors: kInternal with the system's reason; a program
// that cannot be executed ends with exit code 127 and says why in `output`.
Result<pid_t> spawn(const SpawnOptions& options);

// A process and when it began: a number that the system hands out anew is not taken for it.
struct ProcessId {
  pid_t pid = 0;
  unsigned long long start_time = 0;  // clock ticks after boot, /proc/<pid>/stat
};

std::optional<ProcessId> identify(pid_t pid);
bool is_alive(const ProcessId& process);

// "pid start_time" in `file`, and back (nothing when missing or malformed).
Status write_process_file(const std::filesystem::path& file, const ProcessId& process);
std::optional<ProcessId> read_process_file(const std::filesystem::path& file);

// SIGKILL to the process that `file` names, when it still lives; waits until it is gone.
void kill_recorded(const std::filesystem::path& file);

// What a program printed, and how it ended.
struct ProgramResult {
  int exit_code = 0;   // 128 + signal when killed
  std::string output;  // stdout
  std::string errors;  // stderr
};
// Runs to the end. Errors: kInternal when it cannot be started (exit code 127 is the program's).
Result<ProgramResult> run_program(const std::vector<std::string>& arguments);

}  // namespace bitalloc::cli
