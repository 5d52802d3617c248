// The files of the web page, which are part of the program: nothing is ever read from a disk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bitalloc::http {

struct PageFile {
  std::string_view name;  // "index.html"
  std::string_view content_type;
  std::string_view content;
};

// The file at `path` (decoded segments; none: index.html), or null.
const PageFile* find_file(const std::vector<std::string>& path);

}  // namespace bitalloc::http
