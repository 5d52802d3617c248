#include "worker/collective.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <vector>

#include "common/json.h"

namespace bitalloc {
namespace {

class SingleRank final : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(const at::Tensor& /*x*/) override {}
  void all_reduce_max(const at::Tensor& /*x*/) override {}
  at::Tensor all_gather(const at::Tensor& x) override { return x.unsqueeze(0); }
  bool any(bool mine) override { return mine; }
  std::string broadcast(const std::string& text) override { return text; }
  std::vector<std::string> gather_texts(const std::string& text) override { return {text}; }
};

}  // namespace

Collective& single_rank() {
  static SingleRank instance;
  return instance;
}

Status agree(Collective& group, const Status& mine) {
  if (group.is_single()) return mine;
  if (!group.any(!mine.ok())) return {};
  const std::string text = mine.ok() ? "" : error_to_json(mine.error()).dump();
  const std::vector<std::string> texts = group.gather_texts(text);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    BA_ASSIGN_OR_RETURN(const Json json, parse_json(texts[rank], "a rank's error"));
    return error_from_json(json).with_context(fmt::format("rank {}", rank));
  }
  return internal_error("a rank had an error and then none");
}

}  // namespace bitalloc
