# Workers without a model and the processes around them, for tests of the coordinator.
bitalloc_library(bitalloc_fake_worker
                 SOURCES ${CMAKE_SOURCE_DIR}/tests/process/fake_worker.cc
                         ${CMAKE_SOURCE_DIR}/tests/process/fake_worker_service.cc
                         ${CMAKE_SOURCE_DIR}/tests/process/locked_service.cc
                 LIBRARIES bitalloc_zmq Threads::Threads)
target_compile_definitions(bitalloc_fake_worker PRIVATE BITALLOC_BINARY_DIR="${CMAKE_BINARY_DIR}")
