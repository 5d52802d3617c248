// A model directory, looked at before anything runs: is it complete, is it what its config says,
// are its weights finite, and what are its identity (hashes) and its K/V sites. Links no LibTorch,
// so the coordinator and the command line can refuse a bad model before a worker sees it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/model_config.h"
#include "common/safetensors.h"
#include "common/search_spec.h"
#include "common/status.h"

namespace bitalloc {

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

struct InspectOptions {
  bool read_weights = true;  // look for NaN and infinity, compute weights_sha256
  int threads = 0;           // 0: as many as there are cores
};

struct ModelFiles {
  std::filesystem::path directory;
  ModelConfig config;
  std::shared_ptr<const SafetensorsReader> tensors;  // shared with whoever loads the weights
  std::vector<Site> kv_sites;                        // one a layer, in order
  int64_t parameters = 0;                            // tied ones counted once
  // SHA-256 over (name, dtype, shape, SHA-256 of bytes) of every tensor the network uses, sorted by
  // name: sharding a model anew does not change it. Hexadecimal; empty unless read_weights.
  std::string weights_sha256;
  std::string config_sha256;  // SHA-256 of canonical_config_json
};

// The tensors that a network of this configuration has, without the tied output layer.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// The K/V cache of every layer, in order: names as in serving engines' configurations.
std::vector<Site> kv_sites(const ModelConfig& config);

// Errors, each naming file and tensor or field: kInvalidArgument (no directory, no weights,
// malformed file, missing or surplus tensor, wrong shape or dtype, NaN or infinite weights),
// kUnsupported (a family or field that bitalloc does not implement).
Result<ModelFiles> inspect_model(const std::filesystem::path& directory,
                                 const InspectOptions& options = {});

}  // namespace bitalloc
