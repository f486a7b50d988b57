// SPDX-License-Identifier: Apache-2.0
// The transpose of an operand with (16,16) blocks: codes by 8 x 8 squares through shared memory, tile scales repeated
// over 16 rows with all padding, and the amax (docs/numerics.md section 13.1).
#include "cuda/cast/nibbles.cuh"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerMultiprocessor = 4;
constexpr int kTile = 128;  // rows and columns of codes
constexpr int kTileBlocks = kTile / kBlock;
constexpr int kPitch = 18;  // words of a row of codes: 16, and two that keep lanes off one bank

struct Params {
  const uint8_t* qdata;
  const uint8_t* block_scale;
  const float* amax;
  ScaleGrid grid;  // of x
  uint8_t* out_qdata;
  uint8_t* out_block_scale;
  float* out_amax;
  ScaleGrid out_grid;  // of y
  int64_t tile_rows, tile_cols;
  bool vector_in, vector_out;
};

struct alignas(16) Codes {
  uint32_t word[kTile][kPitch];
};

// Row of the transposed codes in shared memory: lanes write rows eight apart, which then lie side by side.
__device__ __forceinline__ int slot(int row) { return row % 8 * 16 + row / 8; }

__device__ __forceinline__ void load_tile(const Params& p, const TileWalk& walk, Codes& codes) {
#pragma unroll
  for (int i = 0; i < kTile * kTileBlocks / kThreads; ++i) {
    const int item = i * kThreads + threadIdx.x, row_in_tile = item / kTileBlocks, block_in_tile = item % kTileBlocks;
    const int64_t row = walk.row * kTile + row_in_tile, block = walk.col * kTileBlocks + block_in_tile;
    uint2 eight_bytes = make_uint2(0, 0);
    if (row < p.grid.rows && block < p.grid.blocks)
      eight_bytes = load_codes(p.qdata + (row * p.grid.blocks + block) * 8, p.vector_in);
    *reinterpret_cast<uint2*>(&codes.word[row_in_tile][2 * block_in_tile]) = eight_bytes;
  }
}

__device__ __forceinline__ void transpose_codes(const Codes& codes, Codes& transposed) {
  const int word = threadIdx.x % 16, group = threadIdx.x / 16;  // columns 8 * word.., rows 8 * group..
  uint32_t rows[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) rows[i] = codes.word[group * 8 + i][word];
  transpose_nibbles(rows);
#pragma unroll
  for (int i = 0; i < 8; ++i) transposed.word[slot(word * 8 + i)][group] = rows[i];
}

__device__ __forceinline__ void store_tile(const Params& p, const TileWalk& walk, const Codes& transposed) {
#pragma unroll
  for (int i = 0; i < kTile * kTileBlocks / kThreads; ++i) {
    const int item = i * kThreads + threadIdx.x, row_in_tile = item / kTileBlocks, block_in_tile = item % kTileBlocks;
    const int64_t row = walk.col * kTile + row_in_tile, block = walk.row * kTileBlocks + block_in_tile;
    if (row < p.out_grid.rows && block < p.out_grid.blocks) {
      const uint2 eight_bytes = *reinterpret_cast<const uint2*>(&transposed.word[slot(row_in_tile)][2 * block_in_tile]);
      store_codes(p.out_qdata + (row * p.out_grid.blocks + block) * 8, eight_bytes, p.vector_out);
    }
  }
}

// Scale (row, block) of y is that of tile (block, row / 16) of x, which x repeats in rows 16 * block...
__device__ __forceinline__ void write_scales(const Params& p, const TileWalk& walk) {
  const int row_in_tile = threadIdx.x / 2, first_block = threadIdx.x % 2 * 4;
  const int64_t row = walk.col * kTile + row_in_tile;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t block = walk.row * kTileBlocks + first_block + i;
    if (row >= p.out_grid.padded_rows || block >= p.out_grid.padded_blocks) continue;
    uint8_t scale = 0;  // padding
    if (row < p.out_grid.rows && block < p.out_grid.blocks)
      scale = __ldg(p.block_scale + scale_offset(p.grid, block * kBlock, row / kBlock));
    p.out_block_scale[scale_offset(p.out_grid, row, block)] = scale;
  }
}

__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor) transpose_kernel(const __grid_constant__ Params p) {
  __shared__ Codes codes;
  __shared__ Codes transposed;
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.out_amax = *p.amax;
  // An empty operand has one CTA and no tile; TileWalk wants at least one.
  if (p.tile_rows == 0 || p.tile_cols == 0) return;
  for (TileWalk walk(p.tile_rows, p.tile_cols); walk.inside(); walk.advance()) {
    load_tile(p, walk, codes);
    write_scales(p, walk);
    __syncthreads();
    transpose_codes(codes, transposed);
    __syncthreads();
    store_tile(p, walk, transposed);
  }
}

}  // namespace

BsStatus transpose(const BsTransposeProblem& problem, const Context& context) {
  const BsOperand& x = problem.x;
  const BsOperand& y = problem.y;
  Params params = {x.qdata,
                   x.block_scale,
                   x.amax,
                   ScaleGrid::make(x.rows, x.k, x.layout == BS_SWIZZLED_128X4),
                   y.qdata,
                   y.block_scale,
                   y.amax,
                   ScaleGrid::make(y.rows, y.k, y.layout == BS_SWIZZLED_128X4),
                   ceil_div(x.rows, kTile),
                   ceil_div(x.k, kTile),
                   is_aligned(x.qdata, 8),
                   is_aligned(y.qdata, 8)};
  const int64_t ctas = one_wave(params.tile_rows * params.tile_cols, kCtasPerMultiprocessor, context);
  return launch(transpose_kernel, ctas, kThreads, context, params);
}

}  // namespace blockscale::cuda
