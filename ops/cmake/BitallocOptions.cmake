# Compiler options of our own code, and the two functions that every folder uses.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(bitalloc_options INTERFACE)
target_include_directories(bitalloc_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(bitalloc_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror>)
target_compile_definitions(bitalloc_options INTERFACE BITALLOC_VERSION="${PROJECT_VERSION}")
if(BITALLOC_SANITIZE)
  target_compile_options(bitalloc_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${BITALLOC_SANITIZE} -fno-omit-frame-pointer
                              -fno-sanitize-recover=all>)
  target_link_options(bitalloc_options INTERFACE -fsanitize=${BITALLOC_SANITIZE})
endif()

# bitalloc_library(name SOURCES a.cc b.cc [LIBRARIES x y]): a static library of ours.
function(bitalloc_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC bitalloc_options ${ARG_LIBRARIES})
endfunction()

# bitalloc_test(name SOURCES a_test.cc … [LIBRARIES x y] [LABELS unit]): one GoogleTest program,
# registered as one ctest test.
function(bitalloc_test name)
  if(NOT BITALLOC_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE bitalloc_options ${ARG_LIBRARIES} GTest::gtest
                                        GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_definitions(${name} PRIVATE BITALLOC_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                             BITALLOC_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
