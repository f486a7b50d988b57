// SPDX-License-Identifier: Apache-2.0
// One rounding to an output dtype, by the hardware's conversions: nearest even, overflow to inf, as numerics/narrow.h.
// (Which NaN a NaN becomes differs, and is free: docs/numerics.md section 0.)
#pragma once
#include <cuda_bf16.h>

#include "cuda/load.cuh"

namespace blockscale::cuda {

template <class Tag>
__device__ __forceinline__ typename Tag::Element narrow(float value);
template <>
__device__ __forceinline__ uint32_t narrow<F32>(float value) {
  return bits_of(value);
}
template <>
__device__ __forceinline__ uint16_t narrow<Bf16>(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
template <>
__device__ __forceinline__ uint16_t narrow<F16>(float value) {
  return __half_as_ushort(__float2half_rn(value));
}

// 16 bytes of output, 4 or 8 elements, of which the first `count` are stored. `vector`: they start on 16 bytes.
template <class Tag, int kCount>
__device__ __forceinline__ void store_16_bytes(void* base, int64_t element, const float (&values)[kCount],
                                               int64_t count, bool vector) {
  using Element = typename Tag::Element;
  static_assert(kCount * sizeof(Element) == 16, "one store");
  Element* to = static_cast<Element*>(base) + element;
  if (vector && count >= kCount) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kIsF32<Tag>)
        words[i] = narrow<Tag>(values[i]);
      else
        words[i] = narrow<Tag>(values[2 * i]) | static_cast<uint32_t>(narrow<Tag>(values[2 * i + 1])) << 16;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < count) to[i] = narrow<Tag>(values[i]);
  }
}

}  // namespace blockscale::cuda
