// For tests: tensors and what an oracle makes of them, as tests/oracle/make_*.py write them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/fake_quant.h"

namespace bitalloc {

struct OracleCase {
  std::string oracle, name, format, storage;
  float amax = 0;
  int64_t rows = 0, head_dim = 0, input_offset = 0, output_offset = 0;

  int64_t count() const { return rows * head_dim; }
};

inline std::string oracle_path(const std::string& name) {
  return std::string(BITALLOC_SOURCE_DIR) + "/tests/oracle/" + name;
}

// The runs of an element file as one entry for each of the 65,536 inputs; -1 where it says "nan".
inline std::vector<int> read_codes(const std::string& name) {
  std::ifstream file(oracle_path(name));
  std::vector<int> codes;
  std::string first, code;
  int previous = 0;
  while (file >> first >> code) {
    codes.resize(std::stoul(first, nullptr, 16), previous);
    previous = code == "nan" ? -1 : static_cast<int>(std::stoul(code, nullptr, 16));
  }
  codes.resize(65536, previous);
  return codes;
}

// The lines of tests/oracle/STEM.txt; each starts with the oracle's name where `with_oracle`.
inline std::vector<OracleCase> read_cases(const std::string& stem, bool with_oracle) {
  std::ifstream file(oracle_path(stem + ".txt"));
  std::vector<OracleCase> cases;
  OracleCase c;
  while ((!with_oracle || file >> c.oracle) && file >> c.name >> c.format >> c.amax >> c.storage >>
                                                   c.rows >> c.head_dim >> c.input_offset >>
                                                   c.output_offset) {
    cases.push_back(c);
  }
  return cases;
}

template <typename Element>
std::vector<Element> read_tensor(const std::string& stem, int64_t offset, int64_t count) {
  std::ifstream file(oracle_path(stem + ".bin"), std::ios::binary);
  std::vector<Element> values(count);
  file.seekg(offset);
  file.read(reinterpret_cast<char*>(values.data()), count * sizeof(Element));
  EXPECT_TRUE(file.good());
  return values;
}

inline uint32_t bits_of(float value) { return float_bits(value); }
inline uint32_t bits_of(Bfloat16 value) { return value.bits; }
inline float value_of(float value) { return value; }
inline float value_of(Bfloat16 value) { return bf16_decode(value); }

// Equal bit for bit, where ±0 count as one: not all oracles keep the sign of a zero.
template <typename Element>
bool same(Element a, Element b) {
  return bits_of(a) == bits_of(b) || (value_of(a) == 0 && value_of(b) == 0);
}

template <typename Element>
std::vector<Element> fake_quantize(const Format& format, float amax, const std::vector<Element>& in,
                                   int64_t head_dim) {
  std::vector<Element> out(in.size());
  const int64_t rows = static_cast<int64_t>(in.size()) / head_dim;
  fake_quantize_cpu(make_quantizer(format, amax), in.data(), head_dim, out.data(), head_dim, rows,
                    head_dim);
  return out;
}

}  // namespace bitalloc
