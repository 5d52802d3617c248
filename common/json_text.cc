#include "common/json_text.h"

namespace bitalloc {

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace bitalloc
