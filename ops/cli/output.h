// Everything the commands print: data on stdout, progress and errors on stderr.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "ops/cli/command_line.h"

namespace bitalloc::cli {

int exit_code_of(ErrorCode code);

// Prints `error`: text with its hint on stderr, or with --json the document
// {"error": {"code", "message", "field", "hint"}} on stdout. Gives the exit code.
int print_error(const Context& context, const Error& error);

// One JSON document on stdout (a line; streams print one object a line).
void print_json(const Json& json);
// A line for people: on stdout, or with --json on stderr so that stdout stays one document.
void print_line(const Context& context, const std::string& text);
// A line of progress on stderr.
void print_note(const std::string& text);

bool stderr_is_terminal();
// A terminal, and NO_COLOR is not set: colour and a progress bar.
bool use_color();

// Columns for people, padded to their widest cell; numbers right-aligned.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // REQUIRES: one cell a column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "1 h 02 min", "3 min 05 s", "12 s".
std::string duration_text(double seconds);
// "5.375", "4.5": at most four digits behind the point, no trailing zeros.
std::string bits_text(double bits);
// "1.23e-04"; "-" for null.
std::string nats_text(const Json& value);

}  // namespace bitalloc::cli
