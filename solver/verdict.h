// What CBC said about an answer.
#pragma once

namespace bitalloc {

enum class CbcVerdict {
  kAgreed,       // optimal, with the same objective
  kNothingLeft,  // not asked: the bound had decided every site
  kStopped,      // ran out of its time before it could say
  kDisagreed,    // claimed something else; logged, and the better certified answer returned
  kNotAsked,     // switched off by the options
};
const char* cbc_verdict_name(CbcVerdict verdict);

}  // namespace bitalloc
