// SPDX-License-Identifier: Apache-2.0
// The transpose of operands with (16,16) blocks (docs/numerics.md section 13.1). Codes: a warp takes 128 x 128, loads
// 16 bytes of 16 rows a lane, transposes squares of 8 x 8 nibbles in registers by byte permutes, and stores 8 bytes of
// 32 rows a lane; every access of the warp is of rows of 64 bytes, whole sectors, so nothing passes through shared
// memory and no warp waits for another. Scales: further units write them as fused_scale does, with all padding.
#include "cuda/cast/nibbles.cuh"
#include "cuda/cast/second_level.cuh"
#include "cuda/primary/list.cuh"
#include "cuda/primary/scale_strip.cuh"
#include "cuda/primary/stages.h"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kCtasPerMultiprocessor = 2;
constexpr int kTile = 128;
constexpr int kChunk = 32;  // codes of a row that a lane loads: 16 bytes

struct TransposeItem {
  int64_t first_unit;
  const uint8_t* qdata;
  const uint8_t* block_scale;
  const float* amax;
  uint8_t* out_qdata;
  float* out_amax;
  ScaleTarget target;                     // scales of y: target.rows = columns of x
  int64_t rows;                           // of x
  uint32_t code_units;                    // units of codes; those of scales follow
  uint32_t tiles_across, strips_across;   // strips_across 0: there are no scales
  bool vector_in, vector_out, halves_in;  // 16-byte loads, 8-byte stores; else 8-byte loads
};

// Codes of 16 rows by 32 columns, a row in four words.
struct LaneCodes {
  uint32_t word[16][4];
};

// Rows are all there or none is: M is a multiple of 16. Of the columns, all, half or none.
template <bool kWhole>
__device__ __forceinline__ void load_codes_of_lane(const TransposeItem& item, int64_t row, int64_t col,
                                                   LaneCodes& codes) {
  const int64_t k = item.target.rows, pitch = k / 2;
  const uint8_t* from = item.qdata + row * pitch + col / 2;
#pragma unroll
  for (int i = 0; i < 16; ++i, from += pitch) {
    if (kWhole || (item.vector_in && row < item.rows && col + kChunk <= k)) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(from));
      codes.word[i][0] = four.x, codes.word[i][1] = four.y, codes.word[i][2] = four.z, codes.word[i][3] = four.w;
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint2 two = make_uint2(0, 0);
        if (row < item.rows && col + 16 * half < k) two = load_codes(from + 8 * half, item.halves_in);
        codes.word[i][2 * half] = two.x, codes.word[i][2 * half + 1] = two.y;
      }
    }
  }
}

template <bool kWhole>
__device__ __forceinline__ void store_codes_of_lane(const TransposeItem& item, int64_t row, int64_t col,
                                                    LaneCodes& codes) {
  const int64_t k = item.target.rows, pitch = item.rows / 2;
  uint8_t* to = item.out_qdata + col * pitch + row / 2;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t upper[8], lower[8];  // rows 0 .. 7 and 8 .. 15
#pragma unroll
    for (int i = 0; i < 8; ++i) upper[i] = codes.word[i][w], lower[i] = codes.word[8 + i][w];
    transpose_nibbles(upper);
    transpose_nibbles(lower);
#pragma unroll
    for (int i = 0; i < 8; ++i, to += pitch) {
      if (!kWhole && (row >= item.rows || col + 8 * w + i >= k)) continue;
      store_codes(to, make_uint2(upper[i], lower[i]), kWhole || item.vector_out);
    }
  }
}

template <bool kWhole>
__device__ __forceinline__ void transpose_codes(const TransposeItem& item, int64_t row, int64_t col) {
  LaneCodes codes;
  load_codes_of_lane<kWhole>(item, row, col, codes);
  store_codes_of_lane<kWhole>(item, row, col, codes);
}

// Scale (row, block) of y is that of tile (block, row / 16) of x, which x repeats in rows 16 * block ..
__device__ __forceinline__ void transpose_scales(const TransposeItem& item, uint32_t strip_row, uint32_t strip_col) {
  const ScaleGrid grid = ScaleGrid::make(item.rows, item.target.rows, item.target.swizzled);
  const int64_t source_row = (int64_t{strip_col} * kScaleStripBlocks + (threadIdx.x & 31)) * kBlock;
  const int64_t source_block = int64_t{strip_row} * kScaleStripTileRows;
  uint32_t bytes[kScaleStripTileRows];
#pragma unroll
  for (int r = 0; r < kScaleStripTileRows; ++r) {
    const bool real = source_row < grid.rows && source_block + r < grid.blocks;
    bytes[r] = real ? __ldg(item.block_scale + scale_offset(grid, source_row, source_block + r)) : 0u;
  }
  store_scale_strip(item.target, strip_row, strip_col, bytes);
}

template <int kBytes>
__global__ void __launch_bounds__(kListThreads, kCtasPerMultiprocessor)
    transpose_kernel(const __grid_constant__ ListParams<TransposeItem, kBytes> p) {
  const int lane = threadIdx.x & 31;
  for (ListWalk<TransposeItem> walk(p); walk.inside(); walk.advance()) {
    walk.enter();
    const TransposeItem& item = walk.item;
    const uint32_t unit = walk.unit();
    if (unit == 0 && lane == 0) *item.out_amax = *item.amax;
    if (unit < item.code_units) {
      const int64_t tile_row = int64_t{unit / item.tiles_across} * kTile;
      const int64_t tile_col = int64_t{unit % item.tiles_across} * kTile;
      const int64_t row = tile_row + (lane >> 2) * 16, col = tile_col + (lane & 3) * kChunk;
      if (item.vector_in && item.vector_out && tile_row + kTile <= item.rows && tile_col + kTile <= item.target.rows)
        transpose_codes<true>(item, row, col);
      else
        transpose_codes<false>(item, row, col);
    } else if (item.strips_across > 0) {
      const uint32_t strip = unit - item.code_units;
      transpose_scales(item, strip / item.strips_across, strip % item.strips_across);
    }
  }
}

struct Stage {
  using Item = TransposeItem;
  using Problem = BsTransposeProblem;
  static ScaleTarget target(const Problem& p) {
    const ScaleGrid grid = ScaleGrid::make(p.y.rows, p.y.k, p.y.layout == BS_SWIZZLED_128X4);
    return ScaleTarget::make(p.y.block_scale, grid, grid.padded_rows, grid.padded_blocks);
  }
  static int64_t code_units(const Problem& p) { return ceil_div(p.x.rows, kTile) * ceil_div(p.x.k, kTile); }
  // At least one, which stores the amax.
  static int64_t units(const Problem& p) {
    const ScaleTarget to = target(p);
    return std::max<int64_t>(1, code_units(p) + to.strips_down() * to.strips_across());
  }
  static Item make(const Problem& p, int64_t first_unit) {
    const ScaleTarget to = target(p);
    const bool whole_chunks = p.x.k % kChunk == 0 || p.x.rows <= 1;
    return {first_unit,
            p.x.qdata,
            p.x.block_scale,
            p.x.amax,
            p.y.qdata,
            p.y.amax,
            to,
            p.x.rows,
            static_cast<uint32_t>(code_units(p)),
            static_cast<uint32_t>(ceil_div(p.x.k, kTile)),
            static_cast<uint32_t>(to.strips_down() > 0 ? to.strips_across() : 0),
            is_aligned(p.x.qdata, 16) && whole_chunks,
            is_aligned(p.y.qdata, 8),
            is_aligned(p.x.qdata, 8)};
  }
  template <int kBytes>
  static BsStatus run(const ListParams<Item, kBytes>& params, const Problem*, const Context& context) {
    return launch_units(transpose_kernel<kBytes>, kCtasPerMultiprocessor, context, params);
  }
};

}  // namespace

BsStatus transpose_list(const BsPrimaryProblem& p, const Context& context) {
  return launch_list<Stage>(p.transpose, p.count, p.table, context);
}
int64_t transpose_table_bytes(int64_t count) { return list_table_bytes<Stage>(count); }
void pack_transpose(const BsPrimaryProblem& p, void* table) {
  pack_list<Stage>(p.transpose, p.count, static_cast<TransposeItem*>(table));
}

}  // namespace blockscale::cuda
