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

TEST(Format, WindowsCostBits) {
  // Of 256 tokens KIVI keeps 0 keys (256 mod 128) and 128 values exact.
  const auto kivi = *parse_candidate("kivi2");
  EXPECT_EQ(bits_per_element(kivi.k, {64, 256, Side::kK}), 3.0);
  EXPECT_EQ(bits_per_element(kivi.v, {64, 256, Side::kV}), (128 * 16 + 128 * 3.0) / 256);
  EXPECT_EQ(bits_per_element(kivi.k, {64, 200, Side::kK}), (72 * 16 + 128 * 3.0) / 200);
  const auto window = *parse_format("nvfp4[see=window,window=10]");
  EXPECT_EQ(bits_per_element(window, {64, 100, Side::kK}), (10 * 16 + 90 * 4.5) / 100);
  EXPECT_EQ(bits_per_element(window, {64, 0, Side::kK}), 4.5);
}

TEST(Format, RowsThatDoNotFitAreRefused) {
  EXPECT_TRUE(check_head_dim(*parse_format("nvfp4[rotate=hadamard]"), 128).ok());
  for (const auto& [name, head_dim] :
       {std::pair("nvfp4", 40), std::pair("mxfp4", 48), std::pair("nvfp4[rotate=hadamard]", 96),
        std::pair("int8_token_head", 2048)}) {
    const Status fits = check_head_dim(*parse_format(name), head_dim);
    ASSERT_FALSE(fits.ok()) << name;
    EXPECT_NE(fits.error().message.find(std::to_string(head_dim)), std::string::npos);
  }
}

TEST(Format, ParametersThatDoNotGoTogetherAreRefused) {
  for (const char* name :
       {"int4[axis=channel,see=window]", "int4[axis=channel,see=kivi,window=96]",
        "int4[see=after_prefill]", "fp8[scale=calibrated,granularity=token_head]",
        "int4[window=64]", "int4[group=48]", "int4[see=window,window=0]",
        "int4[see=window,window=-1]"}) {
    EXPECT_FALSE(parse_format(name).ok()) << name;
  }
  EXPECT_EQ(format_name(*parse_format("int4[group=64,see=window,window=128]")), "int4[see=window]");
  EXPECT_EQ(candidate_name(*parse_candidate("kivi4")),
            "int4[group=32,axis=channel,arithmetic=fp16,see=kivi]/"
            "int4[group=32,arithmetic=fp16,see=kivi]");
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
