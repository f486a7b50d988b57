// SPDX-License-Identifier: Apache-2.0
// Fused scale (docs/numerics.md section 13.1): from reduced amaxes of tiles to their E4M3 scales, the operand's block
// scales with all padding, and the stored amax. A warp takes a strip of 8 by 32 tiles.
#include "cuda/cast/second_level.cuh"
#include "cuda/primary/list.cuh"
#include "cuda/primary/scale_strip.cuh"
#include "cuda/primary/stages.h"

namespace blockscale::cuda {
namespace {

constexpr int kCtasPerMultiprocessor = 4;

struct ScaleItem {
  int64_t first_unit;
  const float* tile_amax;
  const float* amax;
  uint8_t* tile_scales;
  float* stored_amax;
  ScaleTarget target;
  int64_t blocks;
  uint32_t across;  // strips
  float range;
};

template <int kBytes>
__global__ void __launch_bounds__(kListThreads, kCtasPerMultiprocessor)
    fused_scale_kernel(const __grid_constant__ ListParams<ScaleItem, kBytes> p) {
  const int lane = threadIdx.x & 31;
  float amax = 0.0f, encode = 0.0f;
  for (ListWalk<ScaleItem> walk(p); walk.inside(); walk.advance()) {
    const bool entered = walk.enter();
    const ScaleItem& item = walk.item;
    if (entered) {
      // The stored amax may be this very place, written by another warp: only |G| is used.
      amax = *static_cast<const volatile float*>(item.amax);
      encode = encode_scale(amax, item.range);
    }
    if (walk.unit() == 0 && lane == 0) store_amax(item.stored_amax, amax);
    if (item.across == 0) continue;  // nothing but the amax
    const uint32_t strip_row = walk.unit() / item.across, strip_col = walk.unit() % item.across;
    const int64_t block = int64_t{strip_col} * kScaleStripBlocks + lane;
    const int64_t tile_row = int64_t{strip_row} * kScaleStripTileRows;
    float amaxes[kScaleStripTileRows];
#pragma unroll
    for (int r = 0; r < kScaleStripTileRows; ++r) {
      const bool real = (tile_row + r) * kBlock < item.target.rows && block < item.blocks;
      amaxes[r] = real ? __ldg(item.tile_amax + (tile_row + r) * item.blocks + block) : 0.0f;
    }
    uint32_t bytes[kScaleStripTileRows];
#pragma unroll
    for (int r = 0; r < kScaleStripTileRows; ++r) {
      const bool real = (tile_row + r) * kBlock < item.target.rows && block < item.blocks;
      bytes[r] = real ? block_scale_byte(amaxes[r], encode) : 0u;
      if (real) item.tile_scales[(tile_row + r) * item.blocks + block] = static_cast<uint8_t>(bytes[r]);
    }
    store_scale_strip(item.target, strip_row, strip_col, bytes);
  }
}

struct Stage {
  using Item = ScaleItem;
  using Problem = BsFusedScaleItem;
  static ScaleTarget target(const Problem& p) {
    const bool swizzled = p.layout == BS_SWIZZLED_128X4;
    const ScaleGrid grid = ScaleGrid::make(p.rows, p.k, swizzled);
    return ScaleTarget::make(p.block_scale, grid, swizzled ? grid.padded_rows : p.scale_rows,
                             swizzled ? grid.padded_blocks : p.row_stride);
  }
  // At least one, which stores the amax.
  static int64_t units(const Problem& p) {
    const ScaleTarget to = target(p);
    return std::max<int64_t>(1, to.strips_down() * to.strips_across());
  }
  static Item make(const Problem& p, int64_t first_unit) {
    const ScaleTarget to = target(p);
    const bool empty = to.strips_down() == 0;
    return {first_unit,
            p.tile_amax,
            p.amax,
            p.tile_scales,
            p.stored_amax,
            to,
            p.k / kBlock,
            static_cast<uint32_t>(empty ? 0 : to.strips_across()),
            6.0f * static_cast<float>(p.e4m3_max)};
  }
  template <int kBytes>
  static BsStatus run(const ListParams<Item, kBytes>& params, const Problem*, const Context& context) {
    return launch_units(fused_scale_kernel<kBytes>, kCtasPerMultiprocessor, context, params);
  }
};

}  // namespace

BsStatus fused_scale(const BsPrimaryProblem& p, const Context& context) {
  return launch_list<Stage>(p.fused_scale, p.count, p.table, context);
}
int64_t fused_scale_table_bytes(int64_t count) { return list_table_bytes<Stage>(count); }
void pack_fused_scale(const BsPrimaryProblem& p, void* table) {
  pack_list<Stage>(p.fused_scale, p.count, static_cast<ScaleItem*>(table));
}

}  // namespace blockscale::cuda
