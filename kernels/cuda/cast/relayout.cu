// SPDX-License-Identifier: Apache-2.0
// Block scales from one layout to the other; padding is written as zero (docs/numerics.md section 10). A thread moves
// four blocks of a row, which are consecutive in both layouts.
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerMultiprocessor = 6;

struct Params {
  const uint8_t* source;
  uint8_t* target;
  ScaleGrid source_grid, target_grid;
  int64_t tile_rows, groups;  // tiles of 8 warps by 8 rows; groups of four blocks across
  bool vector_source, vector_target;
};

__device__ __forceinline__ uint32_t load_group(const Params& p, int64_t row, int64_t block) {
  const ScaleGrid& grid = p.source_grid;
  if (row >= grid.rows || block >= grid.blocks) return 0;
  const uint8_t* from = p.source + scale_offset(grid, row, block);
  const int64_t count = grid.blocks - block;
  if (p.vector_source && count >= 4) return __ldg(reinterpret_cast<const uint32_t*>(from));
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) word |= static_cast<uint32_t>(__ldg(from + i)) << (8 * i);
  return word;
}

__device__ __forceinline__ void store_group(const Params& p, int64_t row, int64_t block, uint32_t word) {
  const ScaleGrid& grid = p.target_grid;
  if (row >= grid.padded_rows || block >= grid.padded_blocks) return;
  uint8_t* to = p.target + scale_offset(grid, row, block);
  const int64_t count = grid.padded_blocks - block;
  if (p.vector_target && count >= 4) {
    *reinterpret_cast<uint32_t*>(to) = word;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) to[i] = static_cast<uint8_t>(word >> (8 * i));
}

// A warp takes 8 rows by 4 groups: rows {2q, 2q + 1} + {0, 32, 64, 96}, whose words fill sectors of the swizzled side,
// while the linear side sees 16 bytes of each row. Tile t of 64 rows is half an atom: pairs 8 * (t % 2) + warp.
__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor) relayout_kernel(const __grid_constant__ Params p) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row_in_warp = lane >> 2;
  for (TileWalk walk(p.tile_rows, ceil_div(p.groups, 4)); walk.inside(); walk.advance()) {
    const int64_t row =
        (walk.row >> 1) * kAtomRows + (walk.row & 1) * 16 + warp * 2 + (row_in_warp & 1) + (row_in_warp >> 1) * 32;
    const int64_t block = (walk.col * 4 + (lane & 3)) * kAtomBlocks;
    store_group(p, row, block, load_group(p, row, block));
  }
}

// Whether the four bytes at every group's start are one aligned word.
bool has_aligned_groups(const void* scales, const ScaleGrid& grid) {
  return is_aligned(scales, 4) && (grid.swizzled || grid.blocks % 4 == 0 || grid.rows == 1);
}

}  // namespace

BsStatus relayout(const BsRelayoutProblem& problem, const Context& context) {
  if (problem.rows == 0 || problem.k == 0) return ok_status();
  Params params = {};
  params.source = problem.source;
  params.target = problem.target;
  params.source_grid = ScaleGrid::make(problem.rows, problem.k, problem.source_layout == BS_SWIZZLED_128X4);
  params.target_grid = ScaleGrid::make(problem.rows, problem.k, problem.target_layout == BS_SWIZZLED_128X4);
  params.tile_rows = ceil_div(problem.rows, kAtomRows) * 2;
  params.groups = ceil_div(problem.k / kBlock, kAtomBlocks);
  params.vector_source = has_aligned_groups(problem.source, params.source_grid);
  params.vector_target = has_aligned_groups(problem.target, params.target_grid);
  const int64_t ctas = one_wave(params.tile_rows * ceil_div(params.groups, 4), kCtasPerMultiprocessor, context);
  return launch(relayout_kernel, ctas, kThreads, context, params);
}

}  // namespace blockscale::cuda
