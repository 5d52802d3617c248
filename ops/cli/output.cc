#include "ops/cli/output.h"

#include "common/json_text.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace bitalloc::cli {
namespace {

// Characters a cell takes on the screen: UTF-8 continuation bytes take none.
size_t display_width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string pad(const std::string& cell, size_t width, Table::Align align) {
  const std::string blanks(width - display_width(cell), ' ');
  return align == Table::Align::kRight ? blanks + cell : cell + blanks;
}

std::string trim_right(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kMismatch:
    case ErrorCode::kUnsupported:
      return kExitUsage;
    case ErrorCode::kUnavailable:
      return kExitUnreachable;
    case ErrorCode::kNotFound:
      return kExitNotFound;
    case ErrorCode::kInfeasible:
      return kExitInfeasible;
    case ErrorCode::kCancelled:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kInternal:
      return kExitFailed;
  }
  return kExitFailed;
}

int print_error(const Context& context, const Error& error) {
  if (context.json) {
    print_json({{"error", error_to_json(error)}});
    return exit_code_of(error.code);
  }
  const bool color = use_color();
  std::string text = fmt::format("{}error:{} {}\n", color ? "\033[1;31m" : "",
                                 color ? "\033[0m" : "", error.message);
  if (!error.field.empty() && error.message.find(error.field) == std::string::npos) {
    text += fmt::format("  at: {}\n", error.field);
  }
  if (!error.hint.empty()) text += fmt::format("  hint: {}\n", error.hint);
  std::fputs(text.c_str(), stderr);
  return exit_code_of(error.code);
}

void print_json(const Json& json) {
  const std::string text = json_text(json) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // main says so when something was lost
}

void print_line(const Context& context, const std::string& text) {
  std::FILE* stream = context.json ? stderr : stdout;
  std::fputs((text + "\n").c_str(), stream);
  std::fflush(stream);
}

void print_note(const std::string& text) { std::fputs((text + "\n").c_str(), stderr); }

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

bool use_color() {
  const char* no_color = std::getenv("NO_COLOR");
  return stderr_is_terminal() && (no_color == nullptr || *no_color == '\0');
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(display_width(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  const auto line = [&](const auto& cell) {
    std::string text;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) text += "  ";
      text += pad(cell(i), widths[i], columns_[i].align);
    }
    return trim_right(text) + "\n";
  };
  std::string text = line([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) text += line([&](size_t i) { return row[i]; });
  text.pop_back();  // the caller ends the line
  return text;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

std::string bits_text(double bits) {
  std::string text = fmt::format("{:.4f}", bits);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string nats_text(const Json& value) {
  return value.is_number() ? fmt::format("{:.3e}", value.get<double>()) : "-";
}

}  // namespace bitalloc::cli
