// SPDX-License-Identifier: Apache-2.0
// The second level of an operand: where its amax G comes from, and where |G| is stored (docs/numerics.md section 2.1).
#pragma once
#include "contract/types.h"
#include "cuda/reduce.cuh"
#include "numerics/scale.h"

namespace blockscale::cuda {

struct SecondLevel {
  const float* amax;         // one value, or one a row; null: the maximum of `partials`
  const uint32_t* partials;  // magnitudes left by the amax kernel, one a CTA of it
  int32_t partial_count;
  float range;    // 6 * e4m3_max
  float* stored;  // the operand's amax; null: the operand is absent

  static SecondLevel make(const BsOperand& operand, const float* amax, const uint32_t* partials,
                          int32_t partial_count) {
    return {amax, partials, partial_count, 6.0f * static_cast<float>(operand.e4m3_max), operand.amax};
  }
};

__device__ __forceinline__ void store_amax(float* to, float amax) {
  *to = float_of(canonical_magnitude(magnitude_bits(amax)));
}

// G of a tensor, in every thread of the CTA; every thread must call. Reads that may see the |G| another CTA has just
// stored in the same place (a caller may pass the operand's own amax) give the same bytes: only |G| is ever used.
__device__ __forceinline__ float tensor_amax(const SecondLevel& level, uint32_t* scratch) {
  if (level.amax) return *level.amax;
  uint32_t largest = 0;
  for (int i = threadIdx.x; i < level.partial_count; i += blockDim.x) largest = umax(largest, level.partials[i]);
  return float_of(cta_max(largest, scratch));
}

// Se of a tensor, in every thread; the first thread of the grid stores |G|.
__device__ __forceinline__ float tensor_encode(const SecondLevel& level, uint32_t* scratch) {
  if (!level.stored) return 0.0f;
  const float amax = tensor_amax(level, scratch);
  if (blockIdx.x == 0 && threadIdx.x == 0) store_amax(level.stored, amax);
  return encode_scale(amax, level.range);
}

}  // namespace blockscale::cuda
