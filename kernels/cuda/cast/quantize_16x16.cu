// SPDX-License-Identifier: Apache-2.0
// Blocks of (16,16): either orientation, or both, from one read of x and one rounding of each element. A warp takes 16
// rows by 64 columns, two half rows of a tile a thread, and finds a tile's maximum by shuffles; the columnwise codes
// are the transpose of the rowwise ones.
#include "cuda/cast/block.cuh"
#include "cuda/cast/column_stage.cuh"
#include "cuda/cast/nibbles.cuh"
#include "cuda/cast/quantize_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = TileShape::kThreads;
constexpr int kCtasPerMultiprocessor = 4;

struct Params {
  const void* x;
  int64_t row_stride, rows, cols;
  int64_t tile_rows, tile_cols;
  OperandView rowwise, columnwise;
  SecondLevel level;
  float* columnwise_amax;  // also receives |G|; null if absent, or if the only operand is `level`'s
  bool vector_x;
};

// Codes of the tile by rows: 16 words of 8 codes, and two more words so that rows eight apart start on other banks.
struct alignas(16) CodeTile {
  uint32_t word[TileShape::kRows][18];
};

template <class Tag>
__device__ __forceinline__ void quantize_tile(const Params& p, const TileWalk& walk, float encode, CodeTile& codes,
                                              ColumnStage<true>& stage) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row_block = warp / 2, block = warp % 2 * 4 + lane % 4;  // the tile of 16 x 16 within 64 x 128
  const int64_t out_block = walk.col * TileShape::kColBlocks + block;
  Raw16<Tag> x[2];
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = walk.row * TileShape::kRows + row_block * kBlock + i * 8 + lane / 4;
    x[i].clear();
    if (row < p.rows && out_block * kBlock < p.cols)
      x[i].load(p.x, row * p.row_stride + out_block * kBlock, p.vector_x);
    amax = umax(amax, x[i].max_magnitude());
  }
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) amax = umax(amax, __shfl_xor_sync(kFullWarp, amax, offset));

  const float tile_amax = float_of(amax);
  const uint32_t scale = block_scale_byte(tile_amax, encode);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint2 eight_bytes = codes_of_block(x[i], scale, encode, tile_amax);
    const int tile_row = row_block * kBlock + i * 8 + lane / 4;
    const int64_t row = walk.row * TileShape::kRows + tile_row;
    if (p.rowwise.qdata) {
      const ScaleGrid& grid = p.rowwise.grid;
      const bool real = row < grid.rows && out_block < grid.blocks;
      if (real) store_codes(p.rowwise.qdata + (row * grid.blocks + out_block) * 8, eight_bytes, p.rowwise.vector_qdata);
      if (row < grid.padded_rows && out_block < grid.padded_blocks)
        p.rowwise.block_scale[scale_offset(grid, row, out_block)] = static_cast<uint8_t>(real ? scale : 0u);
    }
    if (p.columnwise.qdata) *reinterpret_cast<uint2*>(&codes.word[tile_row][2 * block]) = eight_bytes;
  }
  if (p.columnwise.qdata) {
    const bool real = walk.row * TileShape::kRows + row_block * kBlock < p.rows && out_block * kBlock < p.cols;
    // Two of the tile's 16 columns a lane: each has the tile's scale in its byte row_block.
#pragma unroll
    for (int i = 0; i < 2; ++i)
      reinterpret_cast<uint8_t*>(&stage.scales[block * kBlock + i * 8 + lane / 4])[row_block] =
          static_cast<uint8_t>(real ? scale : 0u);
  }
}

// Half of the threads take 8 x 8 codes each.
__device__ __forceinline__ void transpose_tile(const CodeTile& codes, ColumnStage<true>& stage) {
  if (threadIdx.x >= kThreads / 2) return;
  const int word = threadIdx.x % 16, group = threadIdx.x / 16;
  uint32_t rows[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) rows[i] = codes.word[group * 8 + i][word];
  transpose_nibbles(rows);
#pragma unroll
  for (int i = 0; i < 8; ++i) stage.codes_of(word * 8 + i)[group] = rows[i];
}

template <class Tag>
__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor)
    quantize_16x16_kernel(const __grid_constant__ Params p) {
  __shared__ CodeTile codes;
  __shared__ ColumnStage<true> stage;
  __shared__ uint32_t scratch[32];
  const float amax = tensor_amax(p.level, scratch);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    store_amax(p.level.stored, amax);
    if (p.columnwise_amax) store_amax(p.columnwise_amax, amax);
  }
  const float encode = encode_scale(amax, p.level.range);
  for (TileWalk walk(p.tile_rows, p.tile_cols); walk.inside(); walk.advance()) {
    quantize_tile<Tag>(p, walk, encode, codes, stage);
    if (!p.columnwise.qdata) continue;  // the same in the whole grid
    __syncthreads();
    transpose_tile(codes, stage);
    __syncthreads();
    stage.write(p.columnwise, walk.row, walk.col);
    __syncthreads();  // the next tile writes the stage's scales before its first barrier
  }
}

}  // namespace

BsStatus quantize_16x16(const BsMatrix& x, const BsOperand& rowwise, const BsOperand& columnwise,
                        const SecondLevel& level, const Context& context) {
  const bool both = rowwise.qdata && columnwise.qdata;
  Params params = {x.data,
                   x.row_stride,
                   x.rows,
                   x.cols,
                   0,
                   tile_cols_of(x.cols),
                   OperandView::make(rowwise),
                   OperandView::make(columnwise),
                   level,
                   both ? columnwise.amax : nullptr,
                   has_vector_rows(x)};
  params.tile_rows = tile_rows_of(x.rows, params.rowwise);
  const int64_t ctas = one_wave(params.tile_rows * params.tile_cols, kCtasPerMultiprocessor, context);
  return with_dtype(
      x.dtype, [&](auto tag) { return launch(quantize_16x16_kernel<decltype(tag)>, ctas, kThreads, context, params); });
}

}  // namespace blockscale::cuda
