// SPDX-License-Identifier: Apache-2.0
// Blocks of (1,16) along the columns, and along the rows too if wanted, from one read of x. A CTA takes tiles of
// 64 x 128: rows are quantized from the registers that they were loaded into, columns from a copy in shared memory.
#include "cuda/cast/block.cuh"
#include "cuda/cast/column_stage.cuh"
#include "cuda/cast/quantize_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = TileShape::kThreads;
constexpr int kCtasPerMultiprocessor = 3;

struct Params {
  const void* x;
  int64_t row_stride, rows, cols;
  int64_t tile_rows, tile_cols;
  OperandView rowwise, columnwise;
  SecondLevel rowwise_level, columnwise_level;
  bool vector_x;
};

template <class Tag>
struct alignas(16) Tile {
  static constexpr int kRowWords = TileShape::kCols * sizeof(typename Tag::Element) / 4;
  static constexpr int kPitch = kRowWords + 4;  // 16 bytes more: rows start on different banks
  uint32_t word[TileShape::kRows][kPitch];
};

// Where a thread's two blocks of a row stand: rows r and r + 8 of 16. A warp covers 16 rows by 4 blocks, so that codes
// leave in whole sectors.
struct RowBlock {
  int row, block;
  __device__ __forceinline__ static RowBlock of(int i) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return {warp / 2 * kBlock + i * 8 + lane / 4, warp % 2 * 4 + lane % 4};
  }
};

template <class Tag>
__device__ __forceinline__ void load_tile(const Params& p, const TileWalk& walk, Raw16<Tag> (&x)[2], Tile<Tag>& tile) {
  constexpr int kWords = Raw16<Tag>::kWords;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const RowBlock at = RowBlock::of(i);
    const int64_t row = walk.row * TileShape::kRows + at.row, col = walk.col * TileShape::kCols + at.block * kBlock;
    x[i].clear();
    if (row < p.rows && col < p.cols) x[i].load(p.x, row * p.row_stride + col, p.vector_x);
    uint4* to = reinterpret_cast<uint4*>(&tile.word[at.row][at.block * kWords]);
#pragma unroll
    for (int j = 0; j < kWords / 4; ++j)
      to[j] = make_uint4(x[i].word[4 * j], x[i].word[4 * j + 1], x[i].word[4 * j + 2], x[i].word[4 * j + 3]);
  }
}

template <class Tag, bool kPerRow>
__device__ __forceinline__ void quantize_rows(const Params& p, const TileWalk& walk, float encode,
                                              const Raw16<Tag> (&x)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const RowBlock at = RowBlock::of(i);
    const int64_t row = walk.row * TileShape::kRows + at.row, block = walk.col * TileShape::kColBlocks + at.block;
    const ScaleGrid& grid = p.rowwise.grid;
    uint32_t scale = 0;  // padding
    if (row < grid.rows && block < grid.blocks) {
      if constexpr (kPerRow) {
        const float amax = p.rowwise_level.amax[row];
        encode = encode_scale(amax, p.rowwise_level.range);
        if (block == 0) store_amax(p.rowwise_level.stored + row, amax);
      }
      const QuantizedBlock quantized = quantize_block(x[i], x[i].max_magnitude(), encode);
      store_codes(p.rowwise.qdata + (row * grid.blocks + block) * 8, quantized.codes, p.rowwise.vector_qdata);
      scale = quantized.scale;
    }
    if (row < grid.padded_rows && block < grid.padded_blocks)
      p.rowwise.block_scale[scale_offset(grid, row, block)] = static_cast<uint8_t>(scale);
  }
}

// Sixteen elements of each of two neighbouring columns.
template <class Tag>
__device__ __forceinline__ void read_columns(const Tile<Tag>& tile, int first_row, int column, Raw16<Tag> (&x)[2]) {
  if constexpr (kIsF32<Tag>) {
#pragma unroll
    for (int r = 0; r < 16; ++r) {
      const uint2 pair = *reinterpret_cast<const uint2*>(&tile.word[first_row + r][column]);
      x[0].word[r] = pair.x;
      x[1].word[r] = pair.y;
    }
  } else {
#pragma unroll
    for (int r = 0; r < 16; r += 2) {
      const uint32_t upper = tile.word[first_row + r][column / 2], lower = tile.word[first_row + r + 1][column / 2];
      x[0].word[r / 2] = __byte_perm(upper, lower, 0x5410);
      x[1].word[r / 2] = __byte_perm(upper, lower, 0x7632);
    }
  }
}

template <class Tag, bool kPerRow>
__device__ __forceinline__ void quantize_columns(const Params& p, const TileWalk& walk, float encode,
                                                 const Tile<Tag>& tile, ColumnStage<false>& stage) {
  const int column = threadIdx.x % 64 * 2, block = threadIdx.x / 64;
  const int64_t row = walk.col * TileShape::kCols + column;  // of the columnwise operand
  const bool exists = walk.row * TileShape::kRows + block * kBlock < p.rows;
  Raw16<Tag> x[2];
  read_columns<Tag>(tile, block * kBlock, column, x);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    QuantizedBlock quantized = {make_uint2(0, 0), 0};
    if (exists && row + i < p.cols) {
      if constexpr (kPerRow) {
        const float amax = p.columnwise_level.amax[row + i];
        encode = encode_scale(amax, p.columnwise_level.range);
        if (walk.row == 0 && block == 0) store_amax(p.columnwise_level.stored + row + i, amax);
      }
      quantized = quantize_block(x[i], x[i].max_magnitude(), encode);
    }
    *reinterpret_cast<uint2*>(stage.codes_of(column + i) + 2 * block) = quantized.codes;
    reinterpret_cast<uint8_t*>(&stage.scales[column + i])[block] = static_cast<uint8_t>(quantized.scale);
  }
}

template <class Tag, bool kRowwise, bool kPerRow>
__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor)
    quantize_columnwise_kernel(const __grid_constant__ Params p) {
  __shared__ Tile<Tag> tile;
  __shared__ ColumnStage<false> stage;
  __shared__ uint32_t scratch[32];
  const float rowwise_encode = kPerRow || !kRowwise ? 0.0f : tensor_encode(p.rowwise_level, scratch);
  const float columnwise_encode = kPerRow ? 0.0f : tensor_encode(p.columnwise_level, scratch);
  // Two barriers a tile: the stage is read behind the second one and written again behind the next tile's first, the
  // tile is read before the second one and written after it.
  for (TileWalk walk(p.tile_rows, p.tile_cols); walk.inside(); walk.advance()) {
    Raw16<Tag> x[2];
    load_tile<Tag>(p, walk, x, tile);
    if constexpr (kRowwise) quantize_rows<Tag, kPerRow>(p, walk, rowwise_encode, x);
    __syncthreads();
    quantize_columns<Tag, kPerRow>(p, walk, columnwise_encode, tile, stage);
    __syncthreads();
    stage.write(p.columnwise, walk.row, walk.col);
  }
}

template <class Tag>
BsStatus run(const Params& params, bool rowwise, bool per_row, const Context& context) {
  const int64_t ctas = one_wave(params.tile_rows * params.tile_cols, kCtasPerMultiprocessor, context);
  if (rowwise)
    return launch(per_row ? quantize_columnwise_kernel<Tag, true, true> : quantize_columnwise_kernel<Tag, true, false>,
                  ctas, kThreads, context, params);
  return launch(per_row ? quantize_columnwise_kernel<Tag, false, true> : quantize_columnwise_kernel<Tag, false, false>,
                ctas, kThreads, context, params);
}

}  // namespace

BsStatus quantize_columnwise(const BsMatrix& x, const BsOperand& rowwise, const SecondLevel& rowwise_level,
                             const BsOperand& columnwise, const SecondLevel& columnwise_level, const Context& context) {
  Params params = {x.data,
                   x.row_stride,
                   x.rows,
                   x.cols,
                   0,
                   tile_cols_of(x.cols),
                   OperandView::make(rowwise),
                   OperandView::make(columnwise),
                   rowwise_level,
                   columnwise_level,
                   has_vector_rows(x)};
  params.tile_rows = tile_rows_of(x.rows, params.rowwise);
  const bool per_row = columnwise.scaling == BS_SCALING_ROW;
  return with_dtype(x.dtype,
                    [&](auto tag) { return run<decltype(tag)>(params, rowwise.qdata != nullptr, per_row, context); });
}

}  // namespace blockscale::cuda
