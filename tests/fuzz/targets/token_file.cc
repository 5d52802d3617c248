// A file of token ids and masks.
#include "common/token_file.h"

#include "tests/fuzz/target.h"

bool bitalloc::fuzz::accepts(std::string_view input) {
  const auto tokens = read_token_file(file_with(input));
  if (!tokens.ok()) return false;
  const auto count = static_cast<size_t>(tokens->sequences * tokens->length);
  BA_CHECK(tokens->input_ids.size() == count && tokens->mask.size() == count, "sizes");
  for (const int32_t id : tokens->input_ids) BA_CHECK(id >= 0, "an id below 0");
  for (const uint8_t mask : tokens->mask) BA_CHECK(mask <= 1, "a mask beyond 0 and 1");
  return true;
}
