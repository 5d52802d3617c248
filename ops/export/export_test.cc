#include "ops/export/export.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "common/files.h"
#include "common/json.h"
#include "common/model_files.h"
#include "common/safetensors.h"
#include "ops/export/staging.h"

namespace bitalloc {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kSource(BITALLOC_SOURCE_DIR);
const fs::path kSmallModel = kSource / "tests/fixtures/small/model";

// A directory of its own for every test, removed at its end.
class ExportTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "bitalloc-export-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    scratch_ = name;
    fs::create_directory(scratch_ / "exports");
    output_ = scratch_ / "exports/out";
  }
  void TearDown() override { fs::remove_all(scratch_); }

  // Names in the folder where exports are made: nothing half may ever be there.
  std::vector<std::string> exports() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(scratch_ / "exports")) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  void expect_refusal(const ExportRequest& request, ErrorCode code, const std::string& text) {
    const auto result = export_model(request);
    ASSERT_FALSE(result.ok()) << "expected: " << text;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr(text));
    EXPECT_THAT(exports(), testing::IsEmpty());
  }

  fs::path scratch_;
  fs::path output_;
};

Json read_json(const fs::path& file) {
  const auto text = read_file(file);
  EXPECT_TRUE(text.ok()) << file;
  return text.ok() ? Json::parse(*text) : Json();
}

ExportRequest request_for(const fs::path& model_dir, const fs::path& output,
                          const std::vector<std::string>& candidates) {
  const auto model = inspect_model(model_dir);
  BA_CHECK(model.ok(), model.error().message);
  ExportRequest request;
  request.model_dir = model_dir;
  request.output_dir = output;
  request.spec.model.name = "small";
  request.spec.model.weights_sha256 = model->weights_sha256;
  request.spec.model.config_sha256 = model->config_sha256;
  request.spec.sites = model->kv_sites;
  request.spec.recipe = "kv_fp8_nvfp4_cast_kl_div";
  for (const std::string& name : candidates) {
    const auto candidate = parse_candidate(name);
    BA_CHECK(candidate.ok(), candidate.error().message);
    request.assignment.push_back(*candidate);
  }
  request.search_id = "small-1";
  request.fingerprint = "f00d";
  request.budget_bits = 5.4;
  return request;
}

ExportRequest mixed_request(const fs::path& model_dir, const fs::path& output) {
  std::vector<std::string> candidates(12, "nvfp4/nvfp4");
  candidates[3] = "fp8_e4m3/nvfp4";
  candidates[7] = "fp8_e4m3/fp8_e4m3";
  return request_for(model_dir, output, candidates);
}

// Expected: what nvidia-modelopt 0.48.0rc1 exported for the same assignment of the same model
// (tests/oracle/make_modelopt_export.py).
class ModeloptLayoutTest : public ExportTest, public testing::WithParamInterface<const char*> {};

TEST_P(ModeloptLayoutTest, EveryFieldAndScaleIsModeloptS) {
  const Json expected =
      read_json(kSource / "tests/oracle/modelopt_export.json").at("cases").at(GetParam());
  ExportRequest request = request_for(kSmallModel, output_, expected.at("candidates"));
  if (expected.at("calibrated")) {
    for (Candidate& candidate : request.assignment) {
      candidate.k.scale = ScalePolicy::kCalibrated;
      candidate.v.scale = ScalePolicy::kCalibrated;
    }
    request.amax = expected.at("amax").get<std::vector<float>>();
  }
  const auto summary = export_model(request);
  ASSERT_TRUE(summary.ok()) << summary.error().message;

  EXPECT_EQ(read_json(output_ / "hf_quant_config.json"), expected.at("hf_quant_config"));
  EXPECT_EQ(read_json(output_ / "config.json").at("quantization_config"),
            expected.at("quantization_config"));
  const auto exported = SafetensorsReader::open_model(output_);
  ASSERT_TRUE(exported.ok()) << exported.error().message;
  size_t scales = 0;
  for (const auto& [name, tensor] : (*exported)->tensors()) {
    if (!name.ends_with("_scale")) continue;
    ++scales;
    ASSERT_TRUE(expected.at("scales").contains(name)) << name;
    const Json& wanted = expected.at("scales").at(name);
    EXPECT_EQ(wanted.at("dtype"), "float32");
    EXPECT_EQ(tensor.dtype, Dtype::kF32);
    EXPECT_EQ(Json(tensor.shape), wanted.at("shape"));
    const auto value = read_floats(tensor);
    ASSERT_TRUE(value.ok());
    EXPECT_EQ(value->at(0), wanted.at("value").get<float>()) << name;
  }
  EXPECT_EQ(scales, expected.at("scales").size());
  EXPECT_EQ(summary->scales, static_cast<int64_t>(scales));
}

INSTANTIATE_TEST_SUITE_P(Assignments, ModeloptLayoutTest,
                         testing::Values("uniform_fp8", "uniform_nvfp4", "uniform_fp8_k_nvfp4_v",
                                         "mixed", "mixed_calibrated", "uniform_fp8_calibrated",
                                         "one_layer_off", "mixed_with_layers_off"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(ExportTest, ModelFilesAreLinkedAndUnchanged) {
  fs::copy(kSmallModel, scratch_ / "model");
  std::ofstream(scratch_ / "model/.hidden") << "x";
  std::ofstream(scratch_ / "model/pytorch_model.bin") << "another copy of the weights";
  const auto summary = export_model(mixed_request(scratch_ / "model", output_));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_TRUE(fs::equivalent(scratch_ / "model/model.safetensors",
                             output_ / "model-00001-of-00002.safetensors"));
  EXPECT_TRUE(fs::equivalent(scratch_ / "model/tokenizer.json", output_ / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(output_ / ".hidden"));
  EXPECT_FALSE(fs::exists(output_ / "pytorch_model.bin"));
  EXPECT_FALSE(fs::equivalent(scratch_ / "model/config.json", output_ / "config.json"));
  EXPECT_EQ(summary->files_copied, 0);
  EXPECT_THAT(summary->warnings, testing::IsEmpty());
  EXPECT_EQ(exports(), std::vector<std::string>{"out"});

  Json config = read_json(output_ / "config.json");
  config.erase("quantization_config");
  EXPECT_EQ(config, read_json(kSmallModel / "config.json"));
}

TEST_F(ExportTest, TheIndexListsEveryTensor) {
  ASSERT_TRUE(export_model(mixed_request(kSmallModel, output_)).ok());
  const Json index = read_json(output_ / "model.safetensors.index.json");
  const auto original = SafetensorsReader::open_model(kSmallModel);
  const auto exported = SafetensorsReader::open_model(output_);
  ASSERT_TRUE(exported.ok()) << exported.error().message;
  size_t total_size = 0;
  for (const auto& [name, tensor] : (*exported)->tensors()) {
    EXPECT_EQ(index.at("weight_map").at(name), tensor.file);
    total_size += tensor.bytes.size();
  }
  EXPECT_EQ(index.at("weight_map").size(), (*exported)->tensors().size());
  EXPECT_EQ(index.at("metadata").at("total_size"), total_size);
  EXPECT_EQ((*exported)->tensors().size(), (*original)->tensors().size() + 24);
  for (const auto& [name, tensor] : (*original)->tensors()) {
    const TensorView* copy = (*exported)->find(name);
    ASSERT_NE(copy, nullptr) << name;
    EXPECT_TRUE(std::ranges::equal(copy->bytes, tensor.bytes)) << name;
  }
}

TEST_F(ExportTest, ShardsKeepTheirNames) {
  const fs::path model = scratch_ / "model";
  fs::copy(kSmallModel, model);
  const auto reader = SafetensorsReader::open_model(model);
  std::vector<TensorToWrite> halves[2];
  Json weight_map;
  for (const auto& [name, tensor] : (*reader)->tensors()) {
    const int half = name.ends_with("norm.weight") ? 0 : 1;
    halves[half].push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
    weight_map[name] = half == 0 ? "a.safetensors" : "b.safetensors";
  }
  ASSERT_TRUE(write_safetensors(model / "a.safetensors", halves[0]).ok());
  ASSERT_TRUE(write_safetensors(model / "b.safetensors", halves[1]).ok());
  std::ofstream(model / "model.safetensors.index.json") << Json{{"weight_map", weight_map}};
  fs::remove(model / "model.safetensors");

  ASSERT_TRUE(export_model(mixed_request(model, output_)).ok());
  EXPECT_TRUE(fs::equivalent(model / "a.safetensors", output_ / "a.safetensors"));
  const Json index = read_json(output_ / "model.safetensors.index.json").at("weight_map");
  EXPECT_EQ(index.at("model.norm.weight"), "a.safetensors");
  EXPECT_EQ(index.at("model.layers.11.self_attn.v_proj.v_scale"), "model-kv-scales.safetensors");
  const auto exported = SafetensorsReader::open_model(output_);
  ASSERT_TRUE(exported.ok()) << exported.error().message;
  EXPECT_EQ((*exported)->tensors().size(), (*reader)->tensors().size() + 24);
}

// Caches of model hubs hold links to blobs; a hard link to a symbolic link would dangle elsewhere.
TEST_F(ExportTest, SymbolicLinksAreFollowed) {
  fs::copy(kSmallModel, scratch_ / "blobs");
  fs::create_directory(scratch_ / "model");
  for (const auto& entry : fs::directory_iterator(scratch_ / "blobs")) {
    fs::create_symlink("../blobs" / entry.path().filename(),
                       scratch_ / "model" / entry.path().filename());
  }
  ASSERT_TRUE(export_model(mixed_request(scratch_ / "model", output_)).ok());
  EXPECT_FALSE(fs::is_symlink(output_ / "model-00001-of-00002.safetensors"));
  EXPECT_TRUE(fs::equivalent(scratch_ / "blobs/model.safetensors",
                             output_ / "model-00001-of-00002.safetensors"));
}

TEST_F(ExportTest, OtherFileSystemsGetACopy) {
  struct stat here = {};
  struct stat there = {};
  ASSERT_EQ(::stat(kSmallModel.c_str(), &here), 0);
  if (::stat("/dev/shm", &there) != 0 || here.st_dev == there.st_dev) {
    GTEST_SKIP() << "/dev/shm is no other file system here";
  }
  const fs::path output = fs::path("/dev/shm") / scratch_.filename();
  const auto summary = export_model(mixed_request(kSmallModel, output));
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_EQ(summary->files_linked, 0);
  EXPECT_GE(summary->files_copied, 3);
  EXPECT_EQ(*read_file(output / "model-00001-of-00002.safetensors"),
            *read_file(kSmallModel / "model.safetensors"));
  fs::remove_all(output);
}

TEST_F(ExportTest, ProvenanceIsKept) {
  ExportRequest request = mixed_request(kSmallModel, output_);
  Score score;
  score.kl_nats_per_token = 0.25;
  score.standard_error = 0.125;
  request.scores.assign(12, score);
  const auto summary = export_model(request);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  const Json json = read_json(output_ / "bitalloc.json");
  EXPECT_EQ(json.at("search"), "small-1");
  EXPECT_EQ(json.at("fingerprint"), "f00d");
  EXPECT_EQ(json.at("budget").at("effective_bits"), 5.4);
  EXPECT_EQ(json.at("effective_bits"), (10 * 4.5 + 6.25 + 8.0) / 12);
  EXPECT_EQ(summary->effective_bits, (10 * 4.5 + 6.25 + 8.0) / 12);
  EXPECT_EQ(json.at("objective_kl_nats"), 3.0);
  EXPECT_EQ(json.at("sites").at(3).at("candidate"), "fp8_e4m3/nvfp4");
  EXPECT_EQ(json.at("sites").at(3).at("standard_error"), 0.125);
}

TEST_F(ExportTest, ConstantScaleIgnoresTheAmaxOfOtherCandidates) {
  ExportRequest request = mixed_request(kSmallModel, output_);
  request.amax.assign(24, 4.48F);
  request.assignment[0] = *parse_candidate("fp8_e4m3[scale=calibrated]/nvfp4");
  ASSERT_TRUE(export_model(request).ok());
  const Json scales = read_json(output_ / "bitalloc.json").at("scales");
  EXPECT_EQ(scales.at("model.layers.0.self_attn.k_proj.k_scale").get<float>(), 4.48F / 448.0F);
  EXPECT_EQ(scales.at("model.layers.0.self_attn.v_proj.v_scale").get<float>(), 1.0F);
}

TEST_F(ExportTest, SaysWhenLayersStayBf16OrTheEncodingIsNotServed) {
  ExportRequest request = mixed_request(kSmallModel, output_);
  request.assignment[0] = *parse_candidate("bf16/bf16");
  request.assignment[1] = *parse_candidate("nvfp4[encoding=modelopt]");
  const auto summary = export_model(request);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_THAT(summary->warnings, testing::ElementsAre(HasSubstr("1 of 12 layers keep"),
                                                      HasSubstr("ModelOpt's NVFP4 encoding")));
}

TEST_F(ExportTest, AssignmentsWithoutANameInTheLayoutAreRefused) {
  ExportRequest request = mixed_request(kSmallModel, output_);
  request.assignment[5] = *parse_candidate("nvfp4/fp8_e4m3");
  expect_refusal(request, ErrorCode::kUnsupported, "model.layers.5.self_attn is nvfp4/fp8_e4m3");
  request.assignment[5] = *parse_candidate("bf16/fp8_e4m3");
  expect_refusal(request, ErrorCode::kUnsupported, "model.layers.5.self_attn");
  request.assignment.assign(12, *parse_candidate("bf16/bf16"));
  expect_refusal(request, ErrorCode::kUnsupported, "nothing to export");
}

TEST_F(ExportTest, OtherModelsAreRefused) {
  fs::copy(kSmallModel, scratch_ / "model");
  ExportRequest request = mixed_request(scratch_ / "model", output_);
  const std::string weights = request.spec.model.weights_sha256;
  request.spec.model.weights_sha256 = std::string(64, '0');
  expect_refusal(request, ErrorCode::kMismatch, "weights");
  request.spec.model.weights_sha256 = weights;
  request.spec.model.config_sha256 = std::string(64, '0');
  expect_refusal(request, ErrorCode::kMismatch, "config.json");
  request = mixed_request(scratch_ / "model", output_);
  request.spec.sites[2].name = "model.layers.99.self_attn";
  expect_refusal(request, ErrorCode::kMismatch, "model.layers.99.self_attn");
}

// Same names, shapes and configuration; one bit of one weight differs.
TEST_F(ExportTest, OneChangedWeightIsNoticed) {
  fs::copy(kSmallModel, scratch_ / "model");
  const ExportRequest request = mixed_request(scratch_ / "model", output_);
  std::fstream file(scratch_ / "model/model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-2, std::ios::end);
  char byte = 0;
  file.get(byte);
  file.seekp(-2, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  expect_refusal(request, ErrorCode::kMismatch, "weights");
}

TEST_F(ExportTest, WrongSizesAndAmaxAreRefused) {
  ExportRequest request = mixed_request(kSmallModel, output_);
  request.assignment.pop_back();
  expect_refusal(request, ErrorCode::kInvalidArgument, "11 candidates for 12 sites");
  request = mixed_request(kSmallModel, output_);
  request.amax.assign(12, 1.0F);
  expect_refusal(request, ErrorCode::kInvalidArgument, "12 amax values");
  request.amax.assign(24, std::numeric_limits<float>::quiet_NaN());
  request.assignment[4].k.scale = ScalePolicy::kCalibrated;
  expect_refusal(request, ErrorCode::kInvalidArgument, "K of model.layers.4.self_attn");
  request.amax.assign(24, 0.0F);
  expect_refusal(request, ErrorCode::kInvalidArgument, "K of model.layers.4.self_attn");
}

TEST_F(ExportTest, OutputInOrAroundTheModelIsRefused) {
  const fs::path model = scratch_ / "exports/../model";
  fs::copy(kSmallModel, scratch_ / "model");
  ExportRequest request = mixed_request(model, scratch_ / "model");
  for (const char* place : {"model", "model/", "model/out", "."}) {
    request.output_dir = scratch_ / place;
    request.force = true;
    expect_refusal(request, ErrorCode::kInvalidArgument, "model's directory");
  }
  EXPECT_TRUE(fs::exists(scratch_ / "model/model.safetensors"));
  EXPECT_FALSE(fs::exists(scratch_ / "model/out"));
}

TEST_F(ExportTest, NothingIsOverwrittenWithoutForce) {
  ExportRequest request = mixed_request(kSmallModel, output_);
  ASSERT_TRUE(export_model(request).ok());
  const std::string before = *read_file(output_ / "bitalloc.json");
  request.search_id = "small-2";
  const auto again = export_model(request);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(again.error().hint, HasSubstr("--force"));
  EXPECT_EQ(*read_file(output_ / "bitalloc.json"), before);

  request.force = true;
  ASSERT_TRUE(export_model(request).ok());
  EXPECT_EQ(read_json(output_ / "bitalloc.json").at("search"), "small-2");
  EXPECT_EQ(exports(), std::vector<std::string>{"out"});
}

TEST_F(ExportTest, ForceReplacesOnlyExports) {
  ExportRequest request = mixed_request(kSmallModel, output_);
  request.force = true;
  fs::create_directory(output_);
  std::ofstream(output_ / "thesis.tex") << "years of work";
  EXPECT_FALSE(export_model(request).ok());
  EXPECT_TRUE(fs::exists(output_ / "thesis.tex"));
  request.output_dir = output_ / "thesis.tex";
  EXPECT_FALSE(export_model(request).ok());
  EXPECT_TRUE(fs::exists(output_ / "thesis.tex"));
}

TEST_F(ExportTest, EmptyDirectoriesAndMissingParentsAreFine) {
  ExportRequest request = mixed_request(kSmallModel, output_);
  fs::create_directory(output_);
  EXPECT_TRUE(export_model(request).ok());
  request.output_dir = scratch_ / "exports/a/b/";
  EXPECT_TRUE(export_model(request).ok());
  EXPECT_TRUE(fs::exists(scratch_ / "exports/a/b/config.json"));
}

TEST_F(ExportTest, LeftoversGoUnlessTheirExportIsAlive) {
  fs::create_directory(scratch_ / "exports/.out.partial-dead");
  fs::create_directory(scratch_ / "exports/.out.partial-alive");
  const int fd = ::open((scratch_ / "exports/.out.partial-alive").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  ASSERT_TRUE(export_model(mixed_request(kSmallModel, output_)).ok());
  EXPECT_EQ(exports(), (std::vector<std::string>{".out.partial-alive", "out"}));
  ::close(fd);
}

TEST_F(ExportTest, KilledAtAnyMomentItLeavesNothingHalf) {
  const ExportRequest request = mixed_request(kSmallModel, output_);
  for (int delay_us = 0; delay_us <= 200000; delay_us += 10000) {
    fs::remove_all(output_);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(export_model(request).ok() ? 0 : 1);
    ::usleep(static_cast<useconds_t>(delay_us));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (!fs::exists(output_)) continue;
    EXPECT_TRUE(read_json(output_ / "config.json").contains("quantization_config"));
    EXPECT_EQ(read_json(output_ / "bitalloc.json").at("search"), "small-1");
    EXPECT_EQ(read_json(output_ / "model.safetensors.index.json").at("weight_map").size(), 158U);
  }
  fs::remove_all(output_);
  ASSERT_TRUE(export_model(request).ok());
  EXPECT_EQ(exports(), std::vector<std::string>{"out"});
}

}  // namespace
}  // namespace bitalloc
