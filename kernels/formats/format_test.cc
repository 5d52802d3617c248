#include "kernels/formats/format.h"

#include <gtest/gtest.h>

namespace bitalloc {
namespace {

TEST(Format, BitsAreThoseOfTheFormatsDefinition) {
  // NVFP4: 16 codes of 4 bits and one scale of 8 bits: (16·4 + 8) / 16.
  EXPECT_EQ(bits_per_element(*parse_format("nvfp4"), {64}), (16 * 4 + 8) / 16.0);
  EXPECT_EQ(bits_per_element(*parse_format("fp8_e4m3"), {64}), 8.0);
  EXPECT_EQ(bits_per_element(*parse_format("bf16"), {64}), 16.0);
}

TEST(Format, CanonicalNamesComeBack) {
  for (const char* name :
       {"bf16", "fp8_e4m3", "nvfp4", "nvfp4[encoding=modelopt]", "fp8_e4m3[scale=calibrated]",
        "nvfp4[encoding=modelopt,scale=calibrated]"}) {
    EXPECT_EQ(format_name(*parse_format(name)), name);
  }
  EXPECT_EQ(format_name(*parse_format("fp8")), "fp8_e4m3");
  EXPECT_EQ(format_name(*parse_format("nvfp4[encoding=served,scale=constant]")), "nvfp4");
  EXPECT_EQ(candidate_name(*parse_candidate("fp8/nvfp4")), "fp8_e4m3/nvfp4");
  EXPECT_EQ(candidate_name(*parse_candidate("nvfp4")), "nvfp4/nvfp4");
}

TEST(Format, RefusesWhatItDoesNotKnowByName) {
  for (const char* name : {"", "int7", "nvfp4[", "nvfp4[encoding]", "nvfp4[scale=best]",
                           "bf16[scale=constant]", "fp8_e4m3[encoding=served]", "NVFP4"}) {
    const auto format = parse_format(name);
    ASSERT_FALSE(format.ok()) << name;
    EXPECT_EQ(format.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(format.error().field, "candidates");
  }
  EXPECT_NE(parse_format("int7").error().message.find("'int7'"), std::string::npos);
  EXPECT_FALSE(parse_candidate("nvfp4/nvfp4/nvfp4").ok());
}

}  // namespace
}  // namespace bitalloc
