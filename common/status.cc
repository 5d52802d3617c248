#include "common/status.h"

#include <array>
#include <cstdio>
#include <string_view>

namespace bitalloc {
namespace {

struct CodeName {
  ErrorCode code;
  const char* name;
};

constexpr std::array<CodeName, 9> kCodeNames = {{
    {ErrorCode::kInvalidArgument, "invalid_argument"},
    {ErrorCode::kNotFound, "not_found"},
    {ErrorCode::kMismatch, "mismatch"},
    {ErrorCode::kInfeasible, "infeasible"},
    {ErrorCode::kUnavailable, "unavailable"},
    {ErrorCode::kCancelled, "cancelled"},
    {ErrorCode::kUnsupported, "unsupported"},
    {ErrorCode::kResourceExhausted, "resource_exhausted"},
    {ErrorCode::kInternal, "internal"},
}};

Error make(ErrorCode code, std::string message, std::string field, std::string hint) {
  return Error{code, std::move(message), std::move(field), std::move(hint)};
}

}  // namespace

const char* error_code_name(ErrorCode code) {
  for (const auto& entry : kCodeNames) {
    if (entry.code == code) return entry.name;
  }
  return "internal";
}

ErrorCode error_code_from_name(const std::string& name) {
  for (const auto& entry : kCodeNames) {
    if (entry.name == name) return entry.code;
  }
  return ErrorCode::kInternal;
}

Error Error::with_context(const std::string& context) && {
  message = context + ": " + message;
  return std::move(*this);
}

Error invalid_argument(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kInvalidArgument, std::move(message), std::move(field), std::move(hint));
}
Error not_found(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kNotFound, std::move(message), std::move(field), std::move(hint));
}
Error mismatch(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kMismatch, std::move(message), std::move(field), std::move(hint));
}
Error infeasible(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kInfeasible, std::move(message), std::move(field), std::move(hint));
}
Error unavailable(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kUnavailable, std::move(message), std::move(field), std::move(hint));
}
Error cancelled(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kCancelled, std::move(message), std::move(field), std::move(hint));
}
Error unsupported(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kUnsupported, std::move(message), std::move(field), std::move(hint));
}
Error resource_exhausted(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kResourceExhausted, std::move(message), std::move(field), std::move(hint));
}
Error internal_error(std::string message, std::string field, std::string hint) {
  return make(ErrorCode::kInternal, std::move(message), std::move(field), std::move(hint));
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace bitalloc
