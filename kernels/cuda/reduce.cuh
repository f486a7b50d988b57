// SPDX-License-Identifier: Apache-2.0
// Maxima of magnitudes over a warp and over a CTA, as unsigned integers (docs/numerics.md section 0): a NaN or an inf
// is never lost, and the result does not depend on any order.
#pragma once
#include <cuda_runtime.h>

#include "numerics/bits.h"

namespace blockscale::cuda {

constexpr unsigned kFullWarp = 0xFFFFFFFFu;

__device__ __forceinline__ uint32_t warp_max(uint32_t value) { return __reduce_max_sync(kFullWarp, value); }

// For all threads of a CTA of whole warps; the result is in every thread. `scratch` holds 32 words and may be used
// again at once.
__device__ __forceinline__ uint32_t cta_max(uint32_t value, uint32_t* scratch) {
  const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  value = warp_max(value);
  if (lane == 0) scratch[threadIdx.x >> 5] = value;
  __syncthreads();
  value = warp_max(lane < warps ? scratch[lane] : 0u);
  __syncthreads();
  return value;
}

}  // namespace blockscale::cuda
