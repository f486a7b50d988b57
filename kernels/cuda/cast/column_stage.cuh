// SPDX-License-Identifier: Apache-2.0
// The columnwise part of a 64 x 128 tile of x, on its way out: codes and block scales wait in shared memory so that
// they leave in whole sectors. The tile is 128 rows of the columnwise operand by four of its blocks, one atom of
// SWIZZLED_128X4.
#pragma once
#include "contract/types.h"
#include "cuda/load.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {

// What the kernels over 64 x 128 tiles have in common.
struct TileShape {
  static constexpr int kThreads = 256;
  static constexpr int kRows = 64, kCols = 128;      // of x
  static constexpr int kRowBlocks = kRows / kBlock;  // blocks of a column
  static constexpr int kColBlocks = kCols / kBlock;  // blocks of a row
};

// An operand as a kernel sees it. qdata is null where the operand is absent.
struct OperandView {
  uint8_t* qdata;
  uint8_t* block_scale;
  ScaleGrid grid;
  bool vector_qdata, vector_scales;

  static OperandView make(const BsOperand& x) {
    return {x.qdata, x.block_scale, ScaleGrid::make(x.rows, x.k, x.layout == BS_SWIZZLED_128X4), is_aligned(x.qdata, 8),
            is_aligned(x.block_scale, 4)};
  }
};

// Tiles that cover x, and the padding of either operand's scales.
inline int64_t tile_rows_of(int64_t rows, const OperandView& rowwise) {
  return ceil_div(rowwise.qdata ? std::max(rows, rowwise.grid.padded_rows) : rows, TileShape::kRows);
}
inline int64_t tile_cols_of(int64_t cols) { return ceil_div(cols, TileShape::kCols); }

// Slot of a column's codes. kByEight: the writers' lanes are eight columns apart, and would meet in a bank otherwise.
template <bool kByEight>
struct alignas(16) ColumnStage {
  uint32_t codes[TileShape::kCols][10];  // 64 codes are 8 words; two more keep lanes off one bank, and 8-byte alignment
  uint32_t scales[TileShape::kCols];     // four bytes, one a block

  __device__ __forceinline__ static int slot(int column) { return kByEight ? column % 8 * 16 + column / 8 : column; }
  __device__ __forceinline__ uint32_t* codes_of(int column) { return codes[slot(column)]; }

  // All 256 threads, after a barrier. Columns and blocks that do not exist are skipped; padding scales must hold 0.
  __device__ __forceinline__ void write(const OperandView& out, int64_t tile_row, int64_t tile_col) {
    const int64_t first_row = tile_col * TileShape::kCols, first_block = tile_row * TileShape::kRowBlocks;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int item = i * TileShape::kThreads + threadIdx.x;  // four lanes write the 32 bytes of a column
      const int column = item / TileShape::kRowBlocks, block = item % TileShape::kRowBlocks;
      const int64_t row = first_row + column;
      if (row < out.grid.rows && first_block + block < out.grid.blocks) {
        const uint2 eight_bytes = *reinterpret_cast<const uint2*>(codes_of(column) + 2 * block);
        store_codes(out.qdata + (row * out.grid.blocks + first_block + block) * 8, eight_bytes, out.vector_qdata);
      }
    }
    if (threadIdx.x < TileShape::kCols) {
      const int column = threadIdx.x / 4 + threadIdx.x % 4 * 32;  // the order of the bytes of an atom
      write_scales(out, first_row + column, first_block, scales[column]);
    }
  }

 private:
  __device__ __forceinline__ static void write_scales(const OperandView& out, int64_t row, int64_t block,
                                                      uint32_t word) {
    if (row >= out.grid.padded_rows || block >= out.grid.padded_blocks) return;
    uint8_t* to = out.block_scale + scale_offset(out.grid, row, block);
    if (out.grid.swizzled && out.vector_scales) {
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {  // four blocks of a row are consecutive in both layouts
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (block + i < out.grid.padded_blocks) to[i] = static_cast<uint8_t>(word >> (8 * i));
    }
  }
};

}  // namespace blockscale::cuda
