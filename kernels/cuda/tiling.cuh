// SPDX-License-Identifier: Apache-2.0
// Who works on what: the walk of a CTA over tiles, and the place of each of its 256 threads in a tile of blocks.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>

#include "numerics/layout.h"

namespace blockscale::cuda {

// Smallest log2 with 2^log2 >= count, within 0..limit.
inline int log2_at_least(int64_t count, int limit) {
  int result = 0;
  while (result < limit && (int64_t{1} << result) < count) ++result;
  return result;
}

// grid.offset, told that nothing is negative: shifts in place of divisions.
__device__ __forceinline__ int64_t scale_offset(const ScaleGrid& grid, int64_t row, int64_t block) {
  return grid.offset(row & INT64_MAX, block & INT64_MAX);
}

// Tiles in rows of `across`; CTA i takes tiles i, i + grid, ... One 32-bit division at the start, none in the loop.
struct TileWalk {
  int64_t row, col;
  int64_t rows, across;
  int64_t step_row, step_col;

  __device__ __forceinline__ TileWalk(int64_t rows_, int64_t across_) : rows(rows_), across(across_) {
    start(blockIdx.x, gridDim.x);
  }
  // The same for units other than a CTA, for example warps.
  __device__ __forceinline__ TileWalk(int64_t rows_, int64_t across_, uint32_t unit, uint32_t units)
      : rows(rows_), across(across_) {
    start(unit, units);
  }
  __device__ __forceinline__ bool inside() const { return row < rows; }
  __device__ __forceinline__ void advance() {
    row += step_row;
    col += step_col;
    if (col >= across) {
      col -= across;
      ++row;
    }
  }

 private:
  __device__ __forceinline__ static void split(uint32_t tile, int64_t across, int64_t& row, int64_t& col) {
    if (across > tile) {
      row = 0;
      col = tile;
    } else {
      row = tile / static_cast<uint32_t>(across);
      col = tile % static_cast<uint32_t>(across);
    }
  }
  __device__ __forceinline__ void start(uint32_t unit, uint32_t units) {
    split(unit, across, row, col);
    split(units, across, step_row, step_col);
  }
};

// The first block of a thread in a tile, and where its scale byte stands.
struct BlockSite {
  int64_t row, block, scale;
};

// Tiles over a scale buffer with its padding: 256 threads, `depth` blocks of sixteen elements a thread, `step` blocks
// apart in one row. They are shaped so that a warp's scale bytes fill whole sectors:
// LINEAR: 2^log_across threads side by side in a row. SWIZZLED_128X4: a warp takes 4 blocks of the eight rows
// {2p, 2p + 1} + {0, 32, 64, 96} of an atom, whose 32 bytes are consecutive there, while each row's input is 64
// elements long and its codes fill a sector; 2^log_across warps stand side by side and the others take the next p.
struct BlockTiling {
  static constexpr int kThreads = 256;
  ScaleGrid grid;
  int64_t tile_rows, tiles_across;
  int32_t log_across, depth;

  static BlockTiling make(int64_t rows, int64_t k, bool swizzled, int depth) {
    BlockTiling tiling;
    tiling.grid = ScaleGrid::make(rows, k, swizzled);
    tiling.depth = depth;
    const ScaleGrid& grid = tiling.grid;
    if (swizzled) {
      const int64_t groups = grid.padded_blocks / kAtomBlocks;
      tiling.log_across = log2_at_least(ceil_div(groups, depth), 3);
      tiling.tiles_across = ceil_div(groups, static_cast<int64_t>(depth) << tiling.log_across);
      tiling.tile_rows = grid.padded_rows / (64 >> tiling.log_across);
    } else {
      // At least 4 across: callers reduce over four lanes of one row.
      tiling.log_across = std::max(2, log2_at_least(ceil_div(grid.blocks, depth), 8));
      tiling.tiles_across = ceil_div(grid.blocks, static_cast<int64_t>(depth) << tiling.log_across);
      tiling.tile_rows = ceil_div(grid.rows, kThreads >> tiling.log_across);
    }
    return tiling;
  }
  int64_t tiles() const { return tile_rows * tiles_across; }

  // From a thread's block to its next one in the tile: in blocks, and in bytes of the scale buffer.
  template <bool kSwizzled>
  __device__ __forceinline__ int64_t block_step() const {
    return (kSwizzled ? kAtomBlocks : 1) << log_across;
  }
  template <bool kSwizzled>
  __device__ __forceinline__ int64_t scale_step() const {
    return (kSwizzled ? kAtomBytes : 1) << log_across;
  }

  template <bool kSwizzled>
  __device__ __forceinline__ BlockSite site(int64_t tile_row, int64_t tile_col) const {
    const uint32_t thread = threadIdx.x, across = 1u << log_across;
    BlockSite at;
    if constexpr (kSwizzled) {
      const uint32_t lane = thread & 31, warp = thread >> 5, row_in_warp = lane >> 2;
      const int64_t pair = (tile_row << (3 - log_across)) + (warp >> log_across);
      at.row = (pair >> 4) * kAtomRows + ((pair & 15) * 2 + (row_in_warp & 1) + (row_in_warp >> 1) * 32);
      at.block = (tile_col * depth * across + (warp & (across - 1))) * kAtomBlocks + (lane & 3);
      at.scale = swizzled_offset(at.row & INT64_MAX, at.block & INT64_MAX, grid.padded_blocks / kAtomBlocks);
    } else {
      at.row = tile_row * (kThreads >> log_across) + (thread >> log_across);
      at.block = tile_col * depth * across + (thread & (across - 1));
      at.scale = at.row * grid.blocks + at.block;
    }
    return at;
  }
  __device__ __forceinline__ bool is_real(int64_t row, int64_t block) const {
    return row < grid.rows && block < grid.blocks;
  }
  __device__ __forceinline__ bool is_stored(int64_t row, int64_t block) const {
    return row < grid.padded_rows && block < grid.padded_blocks;
  }
};

}  // namespace blockscale::cuda
