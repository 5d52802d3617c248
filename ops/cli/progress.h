// Shows how a search goes: a bar on a terminal, a line every ten seconds elsewhere.
#pragma once

#include <chrono>
#include <string>

#include "common/json.h"

namespace bitalloc::cli {

class Progress {
 public:
  explicit Progress(bool bar) : bar_(bar) {}
  ~Progress() { finish(); }
  // A search status (wire.h).
  void show(const Json& status);
  // Ends the bar's line.
  void finish();

 private:
  bool bar_;
  bool open_ = false;  // the bar's line is not ended
  std::string last_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_line_;
};

// "running, 42 % (21 of 50 units), 1 min 02 s to 1 min 40 s left".
std::string status_text(const Json& status);

}  // namespace bitalloc::cli
