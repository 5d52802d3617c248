# Scores to assignments: the solver behind the types of common/. Of the coordinator and the command
# line alike.
bitalloc_library(bitalloc_allocate
  SOURCES ${CMAKE_SOURCE_DIR}/solver/allocate.cc ${CMAKE_SOURCE_DIR}/solver/choices.cc
          ${CMAKE_SOURCE_DIR}/solver/confidence_json.cc ${CMAKE_SOURCE_DIR}/solver/validation_rows.cc
  LIBRARIES bitalloc_solver)
bitalloc_test(allocate_test SOURCES ${CMAKE_SOURCE_DIR}/solver/allocate_test.cc
              LIBRARIES bitalloc_allocate)

add_executable(confidence_bench ${CMAKE_SOURCE_DIR}/solver/confidence_bench.cc)
target_link_libraries(confidence_bench PRIVATE bitalloc_allocate CLI11::CLI11)
