// SPDX-License-Identifier: Apache-2.0
// One block of sixteen elements to eight bytes of codes and a block scale (docs/numerics.md section 2.1). The formulas
// are those of numerics/scale.h; this adds the packing and what a block that is not finite looks like.
#pragma once
#include "cuda/cast/e2m1_convert.cuh"
#include "numerics/scale.h"

namespace blockscale::cuda {

constexpr uint32_t kEightSevens = 0x77777777u;

// Codes of sixteen elements whose block scale is known. `amax`: the largest magnitude of the block.
template <class Tag>
__device__ __forceinline__ uint2 codes_of_block(const Raw16<Tag>& x, uint32_t scale, float encode, float amax) {
  const uint2 codes = e2m1_codes(x, element_scale(scale, encode), amax);
  const bool finite = scale != kE4m3NanByte;
  return make_uint2(finite ? codes.x : kEightSevens, finite ? codes.y : kEightSevens);
}

struct QuantizedBlock {
  uint2 codes;
  uint32_t scale;
};

template <class Tag>
__device__ __forceinline__ QuantizedBlock quantize_block(const Raw16<Tag>& x, uint32_t amax_bits, float encode) {
  const float amax = float_of(amax_bits);
  const uint32_t scale = block_scale_byte(amax, encode);
  return {codes_of_block(x, scale, encode, amax), scale};
}

}  // namespace blockscale::cuda
