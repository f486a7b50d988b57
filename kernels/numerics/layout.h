// SPDX-License-Identifier: Apache-2.0
// Where the block scale of (row, block) stands (docs/layouts.md; docs/numerics.md section 10).
#pragma once
#include "bits.h"

namespace blockscale {

constexpr int kBlock = 16;      // elements along K that share a block scale
constexpr int kAtomRows = 128;  // a 512-byte atom of the swizzled layout: 128 rows by 4 blocks
constexpr int kAtomBlocks = 4;
constexpr int kAtomBytes = kAtomRows * kAtomBlocks;

BS_HD int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }
BS_HD int64_t round_up(int64_t value, int64_t unit) { return ceil_div(value, unit) * unit; }

// Offset in a SWIZZLED_128X4 buffer that holds `atom_columns` = ceil(K/16 / 4) atoms across.
BS_HD int64_t swizzled_offset(int64_t row, int64_t block, int64_t atom_columns) {
  const int64_t atom = (row / kAtomRows) * atom_columns + block / kAtomBlocks;
  const int64_t within = (row % 32) * 16 + ((row % kAtomRows) / 32) * 4 + block % kAtomBlocks;
  return atom * kAtomBytes + within;
}

// Geometry of the block-scale buffer of a (rows, 16 * blocks) operand in either layout.
struct ScaleGrid {
  int64_t rows, blocks;                // real scales
  int64_t padded_rows, padded_blocks;  // what the buffer holds; equal to the above in the linear layout
  bool swizzled;

  BS_HD_MEMBER static ScaleGrid make(int64_t rows, int64_t k, bool swizzled) {
    const int64_t blocks = k / kBlock;
    if (!swizzled) return {rows, blocks, rows, blocks, false};
    return {rows, blocks, round_up(rows, kAtomRows), round_up(blocks, kAtomBlocks), true};
  }
  BS_HD_MEMBER int64_t offset(int64_t row, int64_t block) const {
    return swizzled ? swizzled_offset(row, block, padded_blocks / kAtomBlocks) : row * blocks + block;
  }
  BS_HD_MEMBER int64_t bytes() const { return padded_rows * padded_blocks; }
};

}  // namespace blockscale
