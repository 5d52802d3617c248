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

# The wheel carries headers of another fmt than the one that we link: the system's come first. Its
# folder is the compiler's own (/usr/include), which cannot be moved up, hence the link.
find_path(system_fmt_include fmt/format.h NO_CACHE)
set(before_torch ${CMAKE_BINARY_DIR}/include_before_torch)
file(MAKE_DIRECTORY ${before_torch})
if(system_fmt_include)
  file(CREATE_LINK ${system_fmt_include}/fmt ${before_torch}/fmt SYMBOLIC)
endif()

add_library(bitalloc_torch INTERFACE)
target_include_directories(bitalloc_torch SYSTEM INTERFACE
  ${before_torch}
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
target_link_directories(bitalloc_torch INTERFACE ${torch_root}/lib)
# at::parallel_for is a template in headers: without OpenMP it compiles to a loop on one thread. The
# wheel's libgomp.so.1 and the compiler's have one name, so only one of them is ever loaded.
target_compile_options(bitalloc_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_libraries(bitalloc_torch INTERFACE torch torch_cpu c10 gomp Threads::Threads)
target_link_options(bitalloc_torch INTERFACE -Wl,-rpath,${torch_root}/lib)
