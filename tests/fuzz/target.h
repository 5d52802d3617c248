// What a fuzz target is: one function. libfuzzer.cc drives it with inputs that libFuzzer makes up,
// replay.cc with the committed ones.
#pragma once

#include <string>
#include <string_view>

namespace bitalloc::fuzz {

// Parses `input` and checks what must hold afterwards (BA_CHECK, sanitizers). True: it was
// accepted.
bool accepts(std::string_view input);

// A file in memory that holds `input` until the next call; its name can be opened as often as
// wanted.
std::string file_with(std::string_view input);

}  // namespace bitalloc::fuzz
