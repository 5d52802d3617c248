#include "common/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "common/status.h"

namespace bitalloc {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  BA_CHECK(context_->evp && EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1,
           "OpenSSL has no SHA-256");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::update(const void* data, size_t size_bytes) {
  BA_CHECK(EVP_DigestUpdate(context_->evp, data, size_bytes) == 1, "SHA-256 update failed");
  return *this;
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest;
  BA_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) == 1, "SHA-256 final failed");
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::string sha256_hex(std::string_view bytes) { return Sha256().update(bytes).hex(); }

}  // namespace bitalloc
