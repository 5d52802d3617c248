#include "ops/cli/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/files.h"

namespace bitalloc::cli {
namespace {

void close_all_but(int kept) {
  if (kept < 0) {
    ::close_range(3, ~0U, 0);
    return;
  }
  ::fcntl(kept, F_SETFD, 0);  // survives exec
  if (kept > 3) ::close_range(3, static_cast<unsigned>(kept) - 1, 0);
  ::close_range(static_cast<unsigned>(kept) + 1, ~0U, 0);
}

void redirect_streams(const std::filesystem::path& output) {
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  const int log = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (log < 0) return;
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
}

void default_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void become(const SpawnOptions& options, std::vector<char*>& arguments, pid_t parent) {
  default_signals();
  if (options.detach) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);
  }
  if (options.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
  }
  if (!options.output.empty()) redirect_streams(options.output);
  close_all_but(options.keep_descriptor);
  ::execvp(arguments[0], arguments.data());
  ::dprintf(STDERR_FILENO, "cannot run %s: %s\n", arguments[0], std::strerror(errno));
  ::_exit(127);
}

std::vector<char*> argument_pointers(std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return pointers;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Reads both pipes until their writers are gone.
void drain(std::array<int, 2> descriptors, std::array<std::string*, 2> texts) {
  std::array<pollfd, 2> polled = {{{descriptors[0], POLLIN, 0}, {descriptors[1], POLLIN, 0}}};
  std::array<char, 65536> buffer;
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      const ssize_t count = ::read(polled[i].fd, buffer.data(), buffer.size());
      if (count > 0) texts[i]->append(buffer.data(), static_cast<size_t>(count));
      if (count == 0 || (count < 0 && errno != EINTR)) polled[i].fd = -1;
    }
  }
}

}  // namespace

Result<pid_t> spawn(const SpawnOptions& options) {
  std::vector<std::string> arguments = options.arguments;
  std::vector<char*> pointers = argument_pointers(arguments);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    return internal_error(fmt::format("cannot start {}: {}", arguments[0], std::strerror(errno)));
  }
  if (pid == 0) become(options, pointers, parent);
  if (!options.detach) return pid;
  wait_for(pid);
  return pid_t{0};
}

std::optional<ProcessId> identify(pid_t pid) {
  std::ifstream stream(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(stream, text)) return std::nullopt;
  // The name in parentheses may hold anything; fields count from behind it, state is the third.
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string state;
  fields >> state;
  std::string skipped;
  for (int i = 4; i < 22; ++i) fields >> skipped;
  ProcessId process{pid, 0};
  if (!(fields >> process.start_time) || state == "Z" || state == "X") return std::nullopt;
  return process;
}

bool is_alive(const ProcessId& process) {
  const auto now = identify(process.pid);
  return now.has_value() && now->start_time == process.start_time;
}

Status write_process_file(const std::filesystem::path& file, const ProcessId& process) {
  return write_file_atomically(file, fmt::format("{} {}\n", process.pid, process.start_time));
}

std::optional<ProcessId> read_process_file(const std::filesystem::path& file) {
  std::ifstream stream(file);
  ProcessId process;
  if (stream >> process.pid >> process.start_time && process.pid > 0) return process;
  return std::nullopt;
}

void kill_recorded(const std::filesystem::path& file) {
  const auto process = read_process_file(file);
  if (process.has_value() && is_alive(*process)) {
    ::kill(process->pid, SIGKILL);
    for (int i = 0; i < 500 && is_alive(*process); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
}

Result<ProgramResult> run_program(const std::vector<std::string>& arguments) {
  std::array<int, 2> out;
  std::array<int, 2> err;
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) {
    return internal_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  std::vector<std::string> copies = arguments;
  std::vector<char*> pointers = argument_pointers(copies);
  const pid_t pid = ::fork();
  if (pid < 0) return internal_error(fmt::format("cannot fork: {}", std::strerror(errno)));
  if (pid == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    SpawnOptions options;
    options.die_with_parent = true;
    become(options, pointers, ::getppid());
  }
  ::close(out[1]);
  ::close(err[1]);
  ProgramResult result;
  drain({out[0], err[0]}, {&result.output, &result.errors});
  ::close(out[0]);
  ::close(err[0]);
  result.exit_code = wait_for(pid);
  return result;
}

}  // namespace bitalloc::cli
