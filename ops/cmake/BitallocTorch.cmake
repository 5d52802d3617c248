# LibTorch out of the Python wheel, without find_package(Torch): that one insists on a CUDA toolkit.
# BITALLOC_SITE_PACKAGES is the folder that holds torch/ (ops/setup.sh: .venv/lib/python3.*/site-packages).
if(NOT BITALLOC_SITE_PACKAGES)
  file(GLOB candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3.*/site-packages)
  list(LENGTH candidates count)
  if(count GREATER 0)
    list(GET candidates 0 BITALLOC_SITE_PACKAGES)
  endif()
endif()
set(torch_root ${BITALLOC_SITE_PACKAGES}/torch)
if(NOT EXISTS ${torch_root}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found at '${torch_root}'. Run ops/setup.sh, or pass "
                      "-DBITALLOC_SITE_PACKAGES=<folder that holds torch/>, or -DBITALLOC_WORKER=OFF.")
endif()

# The wheel carries headers of another fmt than the one that we link: the system's come first.
find_path(system_fmt_include fmt/format.h NO_CACHE)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include_before_torch)
file(CREATE_LINK ${system_fmt_include}/fmt ${CMAKE_BINARY_DIR}/include_before_torch/fmt SYMBOLIC)

add_library(bitalloc_torch INTERFACE)
target_include_directories(bitalloc_torch SYSTEM INTERFACE
  ${CMAKE_BINARY_DIR}/include_before_torch
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
target_link_directories(bitalloc_torch INTERFACE ${torch_root}/lib)
target_link_libraries(bitalloc_torch INTERFACE torch torch_cpu c10 Threads::Threads)
target_link_options(bitalloc_torch INTERFACE -Wl,-rpath,${torch_root}/lib)
# The wheel carries headers of another fmt than the system's library: ours must be found first. Its
# folder is the compiler's own (/usr/include), which cannot be moved up, hence the link.
find_path(fmt_include fmt/format.h NO_CACHE REQUIRED)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include_first)
file(CREATE_LINK ${fmt_include}/fmt ${CMAKE_BINARY_DIR}/include_first/fmt SYMBOLIC)
target_include_directories(bitalloc_torch BEFORE INTERFACE ${CMAKE_BINARY_DIR}/include_first)
