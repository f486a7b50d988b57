// SPDX-License-Identifier: Apache-2.0
#include "cpu/matrix.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace blockscale::cpu {
namespace {

// move(position in the buffer, position in the row, count) over the pieces of a row that are contiguous in both.
template <class Move>
void for_each_piece(const ScaleGrid& grid, int64_t row, int64_t first_block, int64_t count, const Move& move) {
  if (!grid.swizzled) {
    move(grid.offset(row, first_block), 0, count);
    return;
  }
  int64_t i = 0;
  while (i < count) {
    const int64_t block = first_block + i;
    const int64_t piece = std::min<int64_t>(kAtomBlocks - block % kAtomBlocks, count - i);
    if (piece == kAtomBlocks) break;
    move(grid.offset(row, block), i, piece);
    i += piece;
  }
  // Whole atoms' rows: a constant size, four bytes, and a constant step.
  for (int64_t offset = grid.offset(row, first_block + i); i + kAtomBlocks <= count;
       i += kAtomBlocks, offset += kAtomBytes)
    move(offset, i, std::integral_constant<int64_t, kAtomBlocks>{});
  if (i < count) move(grid.offset(row, first_block + i), i, count - i);
}

}  // namespace

void clear_padding(const BsOperand& x) {
  const ScaleGrid grid = scale_grid(x);
  if (grid.rows != grid.padded_rows || grid.blocks != grid.padded_blocks) std::memset(x.block_scale, 0, grid.bytes());
}

void store_scale_row(const BsOperand& x, const ScaleGrid& grid, int64_t row, int64_t first_block, const uint8_t* scales,
                     int64_t count) {
  for_each_piece(grid, row, first_block, count, [&](int64_t offset, int64_t at, auto piece) {
    std::memcpy(x.block_scale + offset, scales + at, piece);
  });
}

void load_scale_row(const BsOperand& x, const ScaleGrid& grid, int64_t row, int64_t first_block, uint8_t* scales,
                    int64_t count) {
  for_each_piece(grid, row, first_block, count, [&](int64_t offset, int64_t at, auto piece) {
    std::memcpy(scales + at, x.block_scale + offset, piece);
  });
}

}  // namespace blockscale::cpu
