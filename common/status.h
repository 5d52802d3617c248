// Errors as values: `Status` (done or why not) and `Result<T>` (a value or why not).
//
// Every error has a stable code, a message that says what happened and what to do next, and, where
// the cause is an input, the file or field that is wrong. Exceptions of libraries are caught where
// the library is called and become one of these. Programmer errors are asserts (`BA_CHECK`), which
// stay on in release builds.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

namespace bitalloc {

// Stable: the names travel on the wire and in `--json` (see `error_code_name`).
enum class ErrorCode {
  kInvalidArgument,    // wrong input: a file, a field, a flag
  kNotFound,           // no such search, file kept by the service, …
  kMismatch,           // the input is fine but belongs to something else (other model, other data)
  kInfeasible,         // no assignment meets the budget
  kUnavailable,        // the service (or Redis) cannot be reached now
  kCancelled,          // somebody asked for it
  kUnsupported,        // a known thing that this program does not do (a model family, a format)
  kResourceExhausted,  // memory, disk, a size limit
  kInternal,           // a defect of bitalloc or of a library under it
};

// "invalid_argument", "not_found", …
const char* error_code_name(ErrorCode code);
// The inverse; an unknown name is kInternal.
ErrorCode error_code_from_name(const std::string& name);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // one line; says what is wrong and where
  std::string field;    // the file, key or flag at fault; empty when none
  std::string hint;     // what to do next; empty when the message says it

  // Puts "`context`: " before the message, so that an error tells the way it came.
  Error with_context(const std::string& context) &&;
};

Error invalid_argument(std::string message, std::string field = "", std::string hint = "");
Error not_found(std::string message, std::string field = "", std::string hint = "");
Error mismatch(std::string message, std::string field = "", std::string hint = "");
Error infeasible(std::string message, std::string field = "", std::string hint = "");
Error unavailable(std::string message, std::string field = "", std::string hint = "");
Error cancelled(std::string message, std::string field = "", std::string hint = "");
Error unsupported(std::string message, std::string field = "", std::string hint = "");
Error resource_exhausted(std::string message, std::string field = "", std::string hint = "");
Error internal_error(std::string message, std::string field = "", std::string hint = "");

// A value, or the error that stood in its way. Reading the wrong one is a programmer error
// (aborts).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

struct Done {};  // the value of a Status

// Done, or the error that stood in the way.
class [[nodiscard]] Status : public Result<Done> {
 public:
  Status() : Result<Done>(Done{}) {}
  Status(Error error) : Result<Done>(std::move(error)) {}  // NOLINT: implicit
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace bitalloc

// Programmer errors: always checked, in release builds too.
#define BA_CHECK(condition, message)  \
  ((condition) ? static_cast<void>(0) \
               : ::bitalloc::check_failed(__FILE__, __LINE__, #condition, (message)))

#define BA_CONCAT_INNER(a, b) a##b
#define BA_CONCAT(a, b) BA_CONCAT_INNER(a, b)

// Returns the error of `expression` (a Status or Result) to the caller, if it has one.
#define BA_RETURN_IF_ERROR(expression)                      \
  do {                                                      \
    if (auto ba_status_ = (expression); !ba_status_.ok()) { \
      return std::move(ba_status_).error();                 \
    }                                                       \
  } while (false)

// `BA_ASSIGN_OR_RETURN(auto x, f());`: x is the value, or the error goes to the caller.
#define BA_ASSIGN_OR_RETURN(declaration, expression)           \
  auto BA_CONCAT(ba_result_, __LINE__) = (expression);         \
  if (!BA_CONCAT(ba_result_, __LINE__).ok()) {                 \
    return std::move(BA_CONCAT(ba_result_, __LINE__)).error(); \
  }                                                            \
  declaration = std::move(BA_CONCAT(ba_result_, __LINE__)).value()
