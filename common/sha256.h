// SHA-256 (OpenSSL's), as lower-case hex.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace bitalloc {

// Hash of a stream of bytes. One thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  Sha256& update(const void* data, size_t size_bytes);
  Sha256& update(std::string_view text) { return update(text.data(), text.size()); }
  // 64 hex digits. The object is spent afterwards.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string sha256_hex(std::string_view bytes);

}  // namespace bitalloc
