// SPDX-License-Identifier: Apache-2.0
// Transpose of 8 x 8 codes in eight words.
#pragma once
#include <cuda_runtime.h>

#include "numerics/bits.h"

namespace blockscale::cuda {

// rows[i] holds row i, column j in nibble j; afterwards rows[j] holds column j, row i in nibble i. Three rounds swap
// the off-diagonal halves of 8 x 8, 4 x 4 and 2 x 2 squares of nibbles.
__device__ __forceinline__ void transpose_nibbles(uint32_t (&rows)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t p = rows[i], q = rows[i + 4];
    rows[i] = __byte_perm(p, q, 0x5410);
    rows[i + 4] = __byte_perm(p, q, 0x7632);
  }
#pragma unroll
  for (int half = 0; half < 8; half += 4)
#pragma unroll
    for (int i = half; i < half + 2; ++i) {
      const uint32_t p = rows[i], q = rows[i + 2];
      rows[i] = __byte_perm(p, q, 0x6240);
      rows[i + 2] = __byte_perm(p, q, 0x7351);
    }
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const uint32_t p = rows[i], q = rows[i + 1];
    rows[i] = (p & 0x0F0F0F0Fu) | (q << 4 & 0xF0F0F0F0u);
    rows[i + 1] = (p >> 4 & 0x0F0F0F0Fu) | (q & 0xF0F0F0F0u);
  }
}

}  // namespace blockscale::cuda
