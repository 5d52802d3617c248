// Writes a K/V assignment as a Hugging Face directory that serving engines load.
//
// The directory holds the model's own files (hard links where the file system can), config.json
// with a quantization_config and hf_quant_config.json in ModelOpt's layouts (modelopt_config.h),
// one more safetensors file with the scale of every quantized cache
// (`….self_attn.k_proj.k_scale`, `….v_proj.v_scale`: float32 scalars, amax/448), an index that
// lists every tensor, and bitalloc.json: where the assignment comes from.
//
// Function without state: any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/formats/format.h"
#include "common/score_table.h"
#include "common/search_spec.h"
#include "common/status.h"

namespace bitalloc {

struct ExportRequest {
  std::filesystem::path model_dir;   // the model that was searched
  std::filesystem::path output_dir;  // made; its parents too
  bool force = false;                // replace an earlier export at output_dir
  SearchSpec spec;
  std::vector<Candidate> assignment;  // one a site of `spec`, in order
  std::vector<float> amax;            // [sites × 2] of K and V (ScoreTable::amax); empty: all 448
  // Provenance, kept in bitalloc.json.
  std::string search_id;
  std::string fingerprint;    // Fingerprint::sha256
  double budget_bits = 0;     // effective bits that were asked for
  std::vector<Score> scores;  // of each site's candidate; empty when there are none
};

struct ExportSummary {
  std::filesystem::path directory;  // output_dir, absolute
  int64_t files_linked = 0;         // files of the model that take no space
  int64_t files_copied = 0;
  int64_t scales = 0;                 // scale tensors written
  double effective_bits = 0;          // of the exported assignment
  std::vector<std::string> warnings;  // what the reader of the directory should know
};

// Every check comes before the first byte is written, and output_dir appears whole or not at all.
// Errors:
//   kInvalidArgument  sizes that do not fit the spec; amax not finite and positive; a model
//                     directory that is damaged; an output directory that exists (without `force`),
//                     is no earlier export, or lies in the model's directory or around it
//   kMismatch         the model's weights, configuration or sites are not those that were searched
//   kUnsupported      an assignment that ModelOpt's layout cannot say
//   kResourceExhausted  disk full
Result<ExportSummary> export_model(const ExportRequest& request);

}  // namespace bitalloc
