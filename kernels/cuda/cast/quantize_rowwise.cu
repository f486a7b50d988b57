// SPDX-License-Identifier: Apache-2.0
// Blocks of (1,16) along the rows, with a second level that is known before: one read of x, one launch. A thread asks
// for all its blocks of a tile, then quantizes them; the other warps of the multiprocessor cover its wait.
#include "cuda/cast/block.cuh"
#include "cuda/cast/quantize_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

template <class Tag>
struct Config {
  static constexpr int kThreads = BlockTiling::kThreads;
  static constexpr int kBlocks = kIsF32<Tag> ? 1 : 2;  // a thread: 64 bytes of x in either case
  static constexpr int kCtasPerMultiprocessor = 4;
};

struct Params {
  const void* x;
  int64_t row_stride;
  uint8_t* qdata;
  uint8_t* block_scale;
  BlockTiling tiling;
  SecondLevel level;
  bool vector_x, vector_qdata;
};

template <class Tag, bool kSwizzled, bool kPerRow>
__device__ __forceinline__ void quantize_tile(const Params& p, const TileWalk& walk, float encode) {
  constexpr int kBlocks = Config<Tag>::kBlocks;
  const BlockSite at = p.tiling.site<kSwizzled>(walk.row, walk.col);
  const int64_t block_step = p.tiling.block_step<kSwizzled>(), scale_step = p.tiling.scale_step<kSwizzled>();
  Raw16<Tag> x[kBlocks];
  float amax = 0.0f;  // of the row, where rows have one each
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    const int64_t block = at.block + i * block_step;
    x[i].clear();
    if (p.tiling.is_real(at.row, block)) x[i].load(p.x, at.row * p.row_stride + block * kBlock, p.vector_x);
  }
  if constexpr (kPerRow) {
    if (at.row < p.tiling.grid.rows) {
      amax = p.level.amax[at.row];
      if (at.block == 0) store_amax(p.level.stored + at.row, amax);
    }
    encode = encode_scale(amax, p.level.range);
  }
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    const int64_t block = at.block + i * block_step;
    uint32_t scale = 0;  // padding
    if (p.tiling.is_real(at.row, block)) {
      const QuantizedBlock quantized = quantize_block(x[i], x[i].max_magnitude(), encode);
      store_codes(p.qdata + (at.row * p.tiling.grid.blocks + block) * 8, quantized.codes, p.vector_qdata);
      scale = quantized.scale;
    }
    if (p.tiling.is_stored(at.row, block)) p.block_scale[at.scale + i * scale_step] = static_cast<uint8_t>(scale);
  }
}

template <class Tag, bool kSwizzled, bool kPerRow>
__global__ void __launch_bounds__(Config<Tag>::kThreads, Config<Tag>::kCtasPerMultiprocessor)
    quantize_rowwise_kernel(const __grid_constant__ Params p) {
  __shared__ uint32_t scratch[32];
  const float encode = kPerRow ? 0.0f : tensor_encode(p.level, scratch);
  for (TileWalk walk(p.tiling.tile_rows, p.tiling.tiles_across); walk.inside(); walk.advance())
    quantize_tile<Tag, kSwizzled, kPerRow>(p, walk, encode);
}

template <class Tag>
BsStatus run(Params& params, bool per_row, const Context& context) {
  const int64_t ctas = one_wave(params.tiling.tiles(), Config<Tag>::kCtasPerMultiprocessor, context);
  if (params.tiling.grid.swizzled)
    return launch(per_row ? quantize_rowwise_kernel<Tag, true, true> : quantize_rowwise_kernel<Tag, true, false>, ctas,
                  Config<Tag>::kThreads, context, params);
  return launch(per_row ? quantize_rowwise_kernel<Tag, false, true> : quantize_rowwise_kernel<Tag, false, false>, ctas,
                Config<Tag>::kThreads, context, params);
}

}  // namespace

BsStatus quantize_rowwise(const BsMatrix& x, const BsOperand& out, const SecondLevel& level, const Context& context) {
  const bool per_row = out.scaling == BS_SCALING_ROW, swizzled = out.layout == BS_SWIZZLED_128X4;
  Params params = {x.data, x.row_stride, out.qdata,          out.block_scale,
                   {},     level,        has_vector_rows(x), is_aligned(out.qdata, 8)};
  // Rows that follow each other everywhere and share G are one long row: no thread is idle at the end of a short one.
  const bool one_row = !per_row && !swizzled && (x.row_stride == x.cols || x.rows == 1);
  const int64_t rows = one_row ? 1 : x.rows, k = one_row ? x.rows * x.cols : x.cols;
  return with_dtype(x.dtype, [&](auto tag) {
    using Tag = decltype(tag);
    params.tiling = BlockTiling::make(rows, k, swizzled, Config<Tag>::kBlocks);
    return run<Tag>(params, per_row, context);
  });
}

}  // namespace blockscale::cuda
