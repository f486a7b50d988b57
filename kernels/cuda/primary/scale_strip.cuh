// SPDX-License-Identifier: Apache-2.0
// Block scales of (16,16) blocks as they are written: a byte a tile becomes 16 bytes, one a row, in either layout, with
// all padding. A warp takes a strip of 128 rows by 32 blocks, which is 8 rows of tiles, eight atoms of the swizzled
// layout, or 32 bytes of 128 linear rows: whole sectors both ways.
#pragma once
#include "cuda/load.cuh"
#include "cuda/reduce.cuh"
#include "numerics/layout.h"

namespace blockscale::cuda {

constexpr int kScaleStripRows = 128;
constexpr int kScaleStripTileRows = kScaleStripRows / kBlock;
constexpr int kScaleStripBlocks = 32;

struct ScaleTarget {
  uint8_t* scales;
  int64_t rows;                // that have scales; the others are zero
  int64_t padded_rows, width;  // of the buffer; `width` bytes from a row to the next in the linear layout
  bool swizzled, vector;       // vector: rows of an atom are stored whole, or four linear bytes

  static ScaleTarget make(uint8_t* scales, const ScaleGrid& grid, int64_t padded_rows, int64_t width) {
    const bool vector = grid.swizzled ? is_aligned(scales, 16) : is_aligned(scales, 4) && width % 4 == 0;
    return {scales, grid.rows, padded_rows, width, grid.swizzled, vector};
  }
  int64_t strips_down() const { return ceil_div(padded_rows, kScaleStripRows); }
  int64_t strips_across() const { return ceil_div(width, kScaleStripBlocks); }
};

__device__ __forceinline__ void store_bytes(uint8_t* to, uint32_t word, int64_t count) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) to[i] = static_cast<uint8_t>(word >> (8 * i));
}

// bytes[r]: the scale of tile (8 * strip_row + r, 32 * strip_col + lane), 0 outside the matrix. Every lane calls.
__device__ __forceinline__ void store_scale_strip(const ScaleTarget& target, uint32_t strip_row, uint32_t strip_col,
                                                  const uint32_t (&bytes)[kScaleStripTileRows]) {
  const int lane = threadIdx.x & 31, in_quad = lane & 3, quad = lane >> 2;
  uint32_t word[kScaleStripTileRows];  // four blocks of a row of tiles, in each lane of the quad
#pragma unroll
  for (int r = 0; r < kScaleStripTileRows; ++r) {
    uint32_t value = bytes[r] << (8 * in_quad);
    value |= __shfl_xor_sync(kFullWarp, value, 1);
    word[r] = value | __shfl_xor_sync(kFullWarp, value, 2);
  }
  const int64_t row = int64_t{strip_row} * kScaleStripRows;
  const int64_t block = int64_t{strip_col} * kScaleStripBlocks + quad * 4;
  if (block >= target.width) return;
  if (target.swizzled) {
    // A quad fills an atom, whose 16 bytes number q hold rows q + {0, 32, 64, 96}.
    const int64_t atom = strip_row * (target.width / kAtomBlocks) + block / kAtomBlocks;
    uint8_t* to = target.scales + atom * kAtomBytes;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int q = i * 4 + in_quad, parity = i / 4;  // q / 16
      uint32_t part[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) part[j] = row + q + 32 * j < target.rows ? word[parity + 2 * j] : 0u;
      if (target.vector) {
        *reinterpret_cast<uint4*>(to + q * 16) = make_uint4(part[0], part[1], part[2], part[3]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) store_bytes(to + q * 16 + j * 4, part[j], 4);
      }
    }
  } else {
    const int64_t count = target.width - block;
#pragma unroll
    for (int r = 0; r < kScaleStripTileRows; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t at = row + r * kBlock + i * 4 + in_quad;
        if (at >= target.padded_rows) continue;
        uint8_t* to = target.scales + at * target.width + block;
        const uint32_t value = at < target.rows ? word[r] : 0u;
        if (target.vector)
          *reinterpret_cast<uint32_t*>(to) = value;
        else
          store_bytes(to, value, count);
      }
  }
}

}  // namespace blockscale::cuda
