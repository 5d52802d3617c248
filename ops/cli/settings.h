// Where settings and the files shipped beside the program come from.
// Flags win over the environment (BITALLOC_*), which wins over bitalloc.yaml.
#pragma once

#include <filesystem>
#include <string>

#include "common/status.h"

namespace bitalloc::cli {

// Puts the settings of bitalloc.yaml into those BITALLOC_* variables of the environment that are
// not set. The file is BITALLOC_CONFIG, else ./bitalloc.yaml, else
// ~/.config/bitalloc/bitalloc.yaml. Keys: server, server_public_key, key (files), home, workers,
// threads, device, dtype, python, recipes, memory_limit, activation_memory, host_activation_memory.
// Errors: kInvalidArgument naming file:line and key.
Status apply_settings_file();

// BITALLOC_HOME, else $XDG_DATA_HOME/bitalloc, else ~/.local/share/bitalloc.
std::filesystem::path default_home();

// The running program, and a program that is built or installed beside it (else found in PATH; the
// bare name when nowhere).
std::filesystem::path this_program();
std::filesystem::path program_beside(const std::string& name);
// The file NAME in PATH; empty when there is none.
std::filesystem::path find_in_path(const std::string& name);

// A file or folder of the source tree ("ops/recipes"), found from the program's place: the tree
// that it was built in, or ../share/bitalloc of an installation. Empty when neither has it.
std::filesystem::path shipped(const std::string& relative);

}  // namespace bitalloc::cli
