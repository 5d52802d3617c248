// What memory there is: of this machine within its control group, and of a GPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>

namespace bitalloc {

// Bytes that this process can still get on `device`: of host memory for a CPU. Throws as LibTorch
// does.
int64_t available_bytes(const c10::Device& device);

// All the memory that `device` has: of a CPU, its machine. Throws as LibTorch does.
int64_t total_bytes(const c10::Device& device);

// Host memory: what the kernel says is available (MemAvailable), and no more than what the limits
// of the control groups that the process is in leave (versions 1 and 2; page cache counts as free).
// `root`: where /proc and /sys are; tests have their own.
int64_t available_host_bytes(const std::filesystem::path& root = "/");

// Gives back what LibTorch's allocator holds without using it. Nothing for a CPU.
void release_cached_memory(const c10::Device& device);

}  // namespace bitalloc
