// What attention sees when a layer's K and V are stored in a candidate's formats.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "kernels/formats/format.h"
#include "worker/kv_view.h"
#include "worker/scorer.h"

namespace bitalloc {

// Reads back one layer's K and V from several candidates; a format that several of them share is
// encoded once. Not thread-safe: each piece of work has its own.
class QuantizedSides {
 public:
  // mask: bool [sequences, tokens], false = padding, which follows what is real where a candidate's
  // groups run along tokens (check_positions): there it takes no part.
  QuantizedSides(const KvPair& exact, const SiteTask& site, const at::Tensor& mask)
      : exact_(exact), site_(site), mask_(mask) {}

  SeenKv see(const Candidate& candidate);

 private:
  at::Tensor side(const at::Tensor& exact, const Format& format, float amax,
                  std::map<Format, at::Tensor>& known);

  const KvPair& exact_;
  const SiteTask& site_;
  const at::Tensor& mask_;
  std::map<Format, at::Tensor> known_k_;
  std::map<Format, at::Tensor> known_v_;
};

// Every layer at its own candidate. `sites` and `assignment`: one entry a layer.
class AssignedKv final : public KvView {
 public:
  AssignedKv(const std::vector<SiteTask>& sites, const std::vector<Candidate>& assignment,
             const at::Tensor& mask)
      : sites_(sites), assignment_(assignment), mask_(mask) {}

  SeenKv see(int64_t layer, const KvPair& exact) const override;

 private:
  const std::vector<SiteTask>& sites_;
  const std::vector<Candidate>& assignment_;
  const at::Tensor& mask_;
};

// Shows exact K and V and notes their largest magnitudes over real tokens. Each thread needs its
// own.
class CalibratingKv final : public KvView {
 public:
  // mask: bool [sequences, tokens]; `amax`: [layers], grows.
  CalibratingKv(const at::Tensor& mask, std::vector<KvAmax>& amax);

  SeenKv see(int64_t layer, const KvPair& exact) const override;

 private:
  at::Tensor padding_;  // bool [sequences, 1, tokens, 1]; undefined when there is none
  std::vector<KvAmax>& amax_;
};

}  // namespace bitalloc
