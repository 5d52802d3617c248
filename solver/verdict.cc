#include "solver/verdict.h"

namespace bitalloc {

const char* cbc_verdict_name(CbcVerdict verdict) {
  switch (verdict) {
    case CbcVerdict::kAgreed:
      return "agreed";
    case CbcVerdict::kNothingLeft:
      return "nothing_left";
    case CbcVerdict::kStopped:
      return "stopped";
    case CbcVerdict::kDisagreed:
      return "disagreed";
    case CbcVerdict::kNotAsked:
      return "not_asked";
  }
  return "unknown";
}

}  // namespace bitalloc
