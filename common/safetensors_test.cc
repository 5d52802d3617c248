// Files that are not what their header claims are refused by file and tensor; what is written is
// read back. Expected bytes come from the format's definition, written by hand.
#include "common/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/token_file.h"

namespace bitalloc {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() {
    directory_ =
        fs::temp_directory_path() / ("safetensors_test_" + std::to_string(::getpid()) + "_" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(directory_);
  }
  ~SafetensorsTest() override { fs::remove_all(directory_); }

  fs::path write(const std::string& name, const std::string& header, const std::string& data,
                 uint64_t claimed_header_bytes = 0) {
    const uint64_t size = claimed_header_bytes != 0 ? claimed_header_bytes : header.size();
    std::ofstream out(directory_ / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out << header << data;
    return directory_ / name;
  }

  // The refusal of a file, which must be kInvalidArgument and name the file.
  std::string refusal(const fs::path& file) {
    const auto reader = SafetensorsReader::open_file(file);
    if (reader.ok()) return "accepted";
    EXPECT_EQ(reader.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(reader.error().message.find(file.filename().string()), std::string::npos)
        << reader.error().message;
    return reader.error().message;
  }

  fs::path directory_;
};

const char* kTwoTensors =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]},)"
    R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";

std::string two_tensors_data() {
  std::string data(12, '\0');
  const float a = 1.5F;
  const int32_t b[2] = {-7, 9};
  std::memcpy(data.data(), &a, 4);
  std::memcpy(data.data() + 4, b, 8);
  return data;
}

TEST_F(SafetensorsTest, ReadsAFileMadeByHand) {
  const auto reader =
      SafetensorsReader::open_file(write("x.safetensors", kTwoTensors, two_tensors_data()));
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->metadata().at("format"), "pt");
  EXPECT_EQ(read_floats(*(*reader)->find("a")).value(), std::vector<float>{1.5F});
  EXPECT_EQ(read_integers(*(*reader)->find("b")).value(), (std::vector<int64_t>{-7, 9}));
  EXPECT_EQ((*reader)->find("c"), nullptr);
  EXPECT_FALSE(read_integers(*(*reader)->find("a")).ok());
  EXPECT_FALSE(read_floats(*(*reader)->find("b")).ok());
}

TEST_F(SafetensorsTest, RefusesTruncatedFiles) {
  const std::string data = two_tensors_data();
  for (size_t kept = 0; kept < data.size(); ++kept) {
    const std::string message =
        refusal(write("cut.safetensors", kTwoTensors, data.substr(0, kept)));
    EXPECT_NE(message.find(kept < 4 ? "tensor '" : "tensor 'b'"), std::string::npos) << message;
  }
  const std::string header = kTwoTensors;
  refusal(write("header.safetensors", header.substr(0, 30), "", header.size()));
  std::ofstream(directory_ / "tiny.safetensors") << "abc";
  refusal(directory_ / "tiny.safetensors");
  refusal(directory_ / "missing.safetensors");
}

TEST_F(SafetensorsTest, RefusesHeadersThatLie) {
  const auto one = [&](const std::string& entry, size_t bytes) {
    return refusal(write("x.safetensors", "{\"t\":" + entry + "}", std::string(bytes, '\0')));
  };
  const char* kNames = "tensor 't'";
  // Size does not fit shape and dtype; gap before; reversed; unknown dtype; negative; overflow.
  EXPECT_NE(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8).find(kNames),
            std::string::npos);
  EXPECT_NE(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8).find(kNames),
            std::string::npos);
  EXPECT_NE(one(R"({"dtype":"F32","shape":[1],"data_offsets":[8,4]})", 8).find(kNames),
            std::string::npos);
  EXPECT_NE(one(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})", 4).find("'F31'"),
            std::string::npos);
  EXPECT_NE(one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4).find(kNames),
            std::string::npos);
  EXPECT_NE(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0)
                .find(kNames),
            std::string::npos);
  EXPECT_NE(one(R"({"dtype":"F32","shape":[1]})", 4).find(kNames), std::string::npos);
  EXPECT_NE(one(R"(3)", 4).find(kNames), std::string::npos);
  // Bytes that belong to no tensor, and bytes that belong to two.
  one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 5);
  refusal(write("overlap.safetensors",
                R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                R"("b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
                "abcd"));
}

TEST_F(SafetensorsTest, RefusesHeadersThatAreNotJson) {
  refusal(write("x.safetensors", "[]", ""));
  refusal(write("x.safetensors", "{\"t\":", ""));
  refusal(write("x.safetensors", std::string(100000, '['), ""));
  refusal(write("x.safetensors", "{}", "", uint64_t{1} << 62));
  refusal(write("x.safetensors", "{}", "", 200'000'000));
}

TEST_F(SafetensorsTest, WritesWhatItReads) {
  const std::vector<float> values = {1.0F, -2.0F, NAN, INFINITY};
  const std::vector<uint8_t> bytes = {7};
  const fs::path file = directory_ / "out.safetensors";
  ASSERT_TRUE(write_safetensors(file,
                                {{"z", Dtype::kF32, {2, 2}, std::as_bytes(std::span(values))},
                                 {"a", Dtype::kU8, {1}, std::as_bytes(std::span(bytes))},
                                 {"empty", Dtype::kF16, {0, 3}, {}}},
                                {{"made_by", "test"}})
                  .ok());
  const auto reader = SafetensorsReader::open_file(file);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  const TensorView& z = *(*reader)->find("z");
  EXPECT_EQ(z.shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(std::memcmp(z.bytes.data(), values.data(), 16), 0);
  EXPECT_EQ((*reader)->find("empty")->bytes.size(), 0U);
  EXPECT_EQ((*reader)->metadata().at("made_by"), "test");
  EXPECT_FALSE(
      write_safetensors(file, {{"a", Dtype::kF32, {2}, std::as_bytes(std::span(bytes))}}).ok());
}

// IEEE 754 values by hand: 1, -2, the smallest subnormal, the largest finite, infinity.
TEST_F(SafetensorsTest, WidensSixteenBitFloats) {
  const std::vector<uint16_t> half = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0x8000};
  const std::vector<uint16_t> brain = {0x3F80, 0xC000, 0x0001, 0x7F7F, 0x7F80, 0x8000};
  const fs::path file = directory_ / "out.safetensors";
  ASSERT_TRUE(write_safetensors(file, {{"f", Dtype::kF16, {6}, std::as_bytes(std::span(half))},
                                       {"b", Dtype::kBf16, {6}, std::as_bytes(std::span(brain))}})
                  .ok());
  const auto reader = SafetensorsReader::open_file(file);
  EXPECT_EQ(read_floats(*(*reader)->find("f")).value(),
            (std::vector<float>{1.0F, -2.0F, 0x1p-24F, 65504.0F, INFINITY, -0.0F}));
  EXPECT_EQ(read_floats(*(*reader)->find("b")).value(),
            (std::vector<float>{1.0F, -2.0F, 0x1p-133F, 0x1.FEp127F, INFINITY, -0.0F}));
}

TEST_F(SafetensorsTest, RefusesAnIndexThatDoesNotFitItsShards) {
  const std::string data(4, '\0');
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  write("model-1.safetensors", header, data);
  const auto open = [&](const std::string& index) {
    std::ofstream(directory_ / "model.safetensors.index.json") << index;
    const auto reader = SafetensorsReader::open_model(directory_);
    return reader.ok() ? std::string("accepted") : reader.error().message;
  };
  EXPECT_EQ(open(R"({"weight_map":{"a":"model-1.safetensors"}})"), "accepted");
  EXPECT_NE(open(R"({"weight_map":{"b":"model-1.safetensors"}})").find("'b'"), std::string::npos);
  EXPECT_NE(open(R"({"weight_map":{"a":"model-2.safetensors"}})").find("model-2.safetensors"),
            std::string::npos);
  EXPECT_NE(open(R"({"weight_map":{"a":"../model-1.safetensors"}})").find("'a'"),
            std::string::npos);
  EXPECT_NE(open(R"({"weights":{}})").find("weight_map"), std::string::npos);
  EXPECT_NE(open("{").find("model.safetensors.index.json"), std::string::npos);
}

// A pickle runs whatever it says when it is read: it is refused by name, and never opened. Beside
// safetensors it is left alone.
TEST_F(SafetensorsTest, RefusesPickledWeights) {
  for (const char* name : {"pytorch_model.bin", "model.pt", "model.pth", "weights.pkl", "a.ckpt"}) {
    const fs::path folder = directory_ / ("with_" + std::string(name));
    fs::create_directories(folder);
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);  // whoever opened it would hang
    const auto reader = SafetensorsReader::open_model(folder);
    ASSERT_FALSE(reader.ok());
    EXPECT_NE(reader.error().message.find(name), std::string::npos) << reader.error().message;
    EXPECT_NE(reader.error().message.find("pickle"), std::string::npos);
    EXPECT_NE(reader.error().hint.find("safetensors"), std::string::npos);
  }
}

TEST_F(SafetensorsTest, TokenFiles) {
  const TokenSet tokens{2, 3, {1, 2, 3, 4, 5, 6}, {1, 1, 1, 1, 0, 0}};
  const fs::path file = directory_ / "tokens.safetensors";
  ASSERT_TRUE(write_token_file(file, tokens).ok());
  const auto read = read_token_file(file);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->input_ids, tokens.input_ids);
  EXPECT_EQ(read->mask, tokens.mask);
  EXPECT_EQ(read->sequences, 2);
  EXPECT_EQ(read->length, 3);
  const auto other = read_token_file(write("other.safetensors", kTwoTensors, two_tensors_data()));
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("input_ids"), std::string::npos);
}

}  // namespace
}  // namespace bitalloc
