// Ctrl-C (and SIGTERM) as a flag, for commands that clean up or explain before they end.
#pragma once

namespace bitalloc::cli {

// From now on SIGINT and SIGTERM only raise the flag; a second one ends the process at once.
void catch_interrupts();
bool interrupted();

}  // namespace bitalloc::cli
