#include "ops/cli/interrupt.h"

#include <signal.h>

namespace bitalloc::cli {
namespace {

volatile sig_atomic_t raised = 0;
void raise_flag(int) { raised = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = raise_flag;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return raised != 0; }

}  // namespace bitalloc::cli
