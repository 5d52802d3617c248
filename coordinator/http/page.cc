#include "coordinator/http/page.h"

#include <array>

// Puts the bytes of a file of assets/ between two symbols. CMakeLists.txt names the folder and
// makes this file depend on what is in it.
#define BITALLOC_EMBED(symbol, file)                                                            \
  __asm__(".pushsection .rodata\n.global " #symbol "\n" #symbol ":\n.incbin \"" BITALLOC_ASSETS \
          "/" file "\"\n.global " #symbol "_end\n" #symbol "_end:\n.byte 0\n.popsection\n");    \
  extern "C" const char symbol[];                                                               \
  extern "C" const char symbol##_end[]

BITALLOC_EMBED(bitalloc_page_index_html, "index.html");
BITALLOC_EMBED(bitalloc_page_app_js, "app.js");
BITALLOC_EMBED(bitalloc_page_style_css, "style.css");

namespace bitalloc::http {
namespace {

std::string_view between(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

const std::array<PageFile, 3>& files() {
  static const std::array<PageFile, 3> all = {{
      {"index.html", "text/html; charset=utf-8",
       between(bitalloc_page_index_html, bitalloc_page_index_html_end)},
      {"app.js", "text/javascript; charset=utf-8",
       between(bitalloc_page_app_js, bitalloc_page_app_js_end)},
      {"style.css", "text/css; charset=utf-8",
       between(bitalloc_page_style_css, bitalloc_page_style_css_end)},
  }};
  return all;
}

}  // namespace

const PageFile* find_file(const std::vector<std::string>& path) {
  if (path.size() > 1) return nullptr;
  const std::string_view name = path.empty() ? std::string_view("index.html") : path.front();
  for (const PageFile& file : files()) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

}  // namespace bitalloc::http
