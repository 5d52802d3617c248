#include "ops/cli/progress.h"

#include <fmt/format.h>

#include <cstdio>

#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace {

constexpr auto kLineEvery = std::chrono::seconds(10);
constexpr auto kPatience = std::chrono::seconds(5);
constexpr int kBarWidth = 30;

std::string eta_text(const Json& eta) {
  if (!eta.is_array() || eta.size() != 2 || !eta[0].is_number() || !eta[1].is_number()) return "";
  const std::string low = duration_text(eta[0]);
  const std::string high = duration_text(eta[1]);
  return low == high ? fmt::format(", about {} left", low)
                     : fmt::format(", {} to {} left", low, high);
}

}  // namespace

std::string status_text(const Json& status) {
  const Json units = status.value("units", Json::object());
  std::string text = fmt::format("{}, {:.0f} % ({} of {} units)", status.value("state", "unknown"),
                                 100 * status.value("progress", 0.0), units.value("done", 0),
                                 units.value("total", 0));
  if (units.value("failed", 0) > 0) text += fmt::format(", {} failed", units.value("failed", 0));
  if (status.contains("eta_seconds")) text += eta_text(status["eta_seconds"]);
  const Json why = status.value("why_pending", Json());
  if (why.is_string()) text += ": " + why.get<std::string>();
  return text;
}

void Progress::show(const Json& shown) {
  Json status = shown;
  // Workers that were asked for a moment ago are on their way: no reason to say that there are
  // none.
  if (std::chrono::steady_clock::now() - start_ < kPatience) status.erase("why_pending");
  const std::string text = status_text(status);
  if (bar_) {
    if (text == last_) return;
    const int full = static_cast<int>(kBarWidth * status.value("progress", 0.0));
    std::string bar;
    for (int i = 0; i < kBarWidth; ++i) bar += i < full ? "█" : "░";
    fmt::print(stderr, "\r\033[K{} {}", bar, text);
    std::fflush(stderr);
    open_ = true;
  } else {
    const auto now = std::chrono::steady_clock::now();
    if (text == last_ || (!last_.empty() && now - last_line_ < kLineEvery)) return;
    last_line_ = now;
    fmt::print(stderr, "{}\n", text);
  }
  last_ = text;
}

void Progress::finish() {
  if (open_) std::fputs("\n", stderr);
  open_ = false;
}

}  // namespace bitalloc::cli
