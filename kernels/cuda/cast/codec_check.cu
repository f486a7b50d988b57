// SPDX-License-Identifier: Apache-2.0
// All 2^32 floats through the conversions that the casts of this device use, compared with CUDA's own.
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "cuda/cast/block.cuh"
#include "cuda/cast/codec_check.h"
#include "cuda/export.h"
#include "cuda/launch.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  unsigned long long* mismatches;
};

__device__ __forceinline__ uint32_t code_of(uint2 codes, int i) {
  return (i < 8 ? codes.x : codes.y) >> (i % 8 * 4) & 15;
}

// Sixteen consecutive floats as one block with e = 1. `amax` decides which path the block takes. NaN elements are left
// out: a block that holds one is not rounded at all (block.cuh).
__device__ int wrong_elements(uint32_t first, float amax) {
  Raw16<F32> x;
#pragma unroll
  for (int i = 0; i < 16; ++i) x.word[i] = magnitude_bits(float_of(first + i)) > kInfBits ? 0u : first + i;
  const uint2 codes = e2m1_codes(x, 1.0f, amax);
  int wrong = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i)
    wrong += code_of(codes, i) != (__nv_cvt_float_to_fp4(float_of(x.word[i]), __NV_E2M1, cudaRoundNearest) & 15u);
  return wrong;
}

__device__ int wrong_scales(uint32_t first) {
  int wrong = 0;
  for (int i = 0; i < 16; ++i)
    if (first + i <= kInfBits)
      wrong += e4m3_byte(float_of(first + i)) != __nv_cvt_float_to_fp8(float_of(first + i), __NV_SATFINITE, __NV_E4M3);
  return wrong;
}

__global__ void __launch_bounds__(kThreads) codec_check_kernel(const __grid_constant__ Params p) {
  unsigned long long elements = 0, scales = 0;
  const uint64_t step = uint64_t{gridDim.x} * kThreads * 16;
  for (uint64_t first = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) * 16; first < uint64_t{1} << 32;
       first += step) {
    const uint32_t bits = static_cast<uint32_t>(first);
    // The sixteen magnitudes ascend (bit 31 is the same in all), so the last is the largest that is not NaN, or NaN.
    elements += wrong_elements(bits, float_of(magnitude_bits(float_of(bits + 15))));
    elements += wrong_elements(bits, float_of(kInfBits));
    scales += wrong_scales(bits);
  }
  if (elements) atomicAdd(&p.mismatches[0], elements);
  if (scales) atomicAdd(&p.mismatches[1], scales);
}

}  // namespace
}  // namespace blockscale::cuda

extern "C" BLOCKSCALE_EXPORT BsStatus blockscale_cuda_check_codecs(unsigned long long* mismatches,
                                                                   const BsLaunch* where) {
  using namespace blockscale;
  using namespace blockscale::cuda;
  if (!mismatches || !where) return failure(BS_INVALID, "check_codecs: mismatches must be two counts on the device.");
  const DeviceGuard guard(where->device);
  if (guard.error() != cudaSuccess) return cuda_failure("check_codecs", "making the device current", guard.error());
  Context context = {"check_codecs", static_cast<cudaStream_t>(where->stream), where->device, 0, nullptr};
  cudaError_t error = multiprocessors(where->device, &context.multiprocessors);
  if (error == cudaSuccess) error = cudaMemsetAsync(mismatches, 0, 2 * sizeof *mismatches, context.stream);
  if (error != cudaSuccess) return cuda_failure("check_codecs", "clearing the counts", error);
  const Params params = {mismatches};
  return launch(codec_check_kernel, one_wave(1 << 20, 4, context), kThreads, context, params);
}
