// SPDX-License-Identifier: Apache-2.0
// The current device, and what is asked of it. Host code only.
#pragma once
#include <cuda_runtime.h>

#include <atomic>

#include "contract/status.h"

namespace blockscale::cuda {

// Reads, and so clears, what the runtime remembers of a failed call: the next caller must not meet it.
inline BsStatus cuda_failure(const char* op, const char* what, cudaError_t error) {
  cudaGetLastError();
  return failure(BS_FAILED, "%s: %s failed on the GPU: %s (%s).", op, what, cudaGetErrorString(error),
                 cudaGetErrorName(error));
}

// Makes a device current for a scope, and puts the caller's back. Costs one query where it already is.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ != cudaSuccess || previous_ == device) return;
    error_ = cudaSetDevice(device);
    switched_ = error_ == cudaSuccess;
  }
  ~DeviceGuard() {
    if (switched_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int previous_ = 0;
  bool switched_ = false;
  cudaError_t error_;
};

// Multiprocessors of a device; asked once for each. Two threads that race write the same number.
inline cudaError_t multiprocessors(int device, int* count) {
  constexpr int kRemembered = 64;
  static std::atomic<int> counts[kRemembered];
  const bool remembered = device >= 0 && device < kRemembered;
  *count = remembered ? counts[device].load(std::memory_order_relaxed) : 0;
  if (*count > 0) return cudaSuccess;
  const cudaError_t error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess && remembered) counts[device].store(*count, std::memory_order_relaxed);
  return error;
}

}  // namespace blockscale::cuda
