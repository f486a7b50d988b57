// SPDX-License-Identifier: Apache-2.0
// t quantized to blocks of (1,16) with a given second level (docs/numerics.md section 12): the bytes of quantize(t),
// and the maximum of |t|. A thread has one block.
#include "cuda/cast/block.cuh"
#include "cuda/cast/second_level.cuh"
#include "cuda/epilogue/accumulator.cuh"
#include "cuda/epilogue/epilogue_kernels.h"
#include "cuda/epilogue/returned_amax.cuh"
#include "cuda/launch.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = BlockTiling::kThreads;
constexpr int kCtasPerMultiprocessor = 3;
constexpr int64_t kPiece = 4 * kBlock;  // columns of the four lanes that share a partial maximum of their row

struct Params {
  AccumulatorParams accumulator;
  BlockTiling tiling;
  SecondLevel level;
  uint8_t* qdata;
  uint8_t* block_scale;
  ReturnedAmax amax;
  bool vector_qdata;
};

__device__ __forceinline__ void finish_block(const AccumulatorParams& a, float alpha, int64_t row, int64_t col,
                                             Raw16<F32>& t) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float run[kRun];
    finish_accumulators(a, alpha, row, col + half * kRun, kRun, run);
#pragma unroll
    for (int i = 0; i < kRun; ++i) t.word[half * kRun + i] = bits_of(run[i]);
  }
}

template <bool kSwizzled, bool kPerRow>
__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor)
    nvfp4_output_kernel(const __grid_constant__ Params p) {
  __shared__ uint32_t scratch[32];
  const BlockTiling& tiling = p.tiling;
  const float alpha = read_alpha(p.accumulator);
  float encode = kPerRow ? 0.0f : tensor_encode(p.level, scratch);
  uint32_t of_thread = 0;
  for (TileWalk walk(tiling.tile_rows, tiling.tiles_across); walk.inside(); walk.advance()) {
    const BlockSite at = tiling.site<kSwizzled>(walk.row, walk.col);
    uint32_t largest = 0, scale = 0;
    if (tiling.is_real(at.row, at.block)) {
      Raw16<F32> t;
      finish_block(p.accumulator, alpha, at.row, at.block * kBlock, t);
      if constexpr (kPerRow) {
        const float amax = p.level.amax[at.row];
        encode = encode_scale(amax, p.level.range);
        if (at.block == 0) store_amax(p.level.stored + at.row, amax);
      }
      largest = t.max_magnitude();
      const QuantizedBlock block = quantize_block(t, largest, encode);
      store_codes(p.qdata + (at.row * tiling.grid.blocks + at.block) * 8, block.codes, p.vector_qdata);
      scale = block.scale;
    }
    if (tiling.is_stored(at.row, at.block)) p.block_scale[at.scale] = static_cast<uint8_t>(scale);
    of_thread = umax(of_thread, largest);
    if (p.amax.of_row) {  // four consecutive lanes have four consecutive blocks of one row
      largest = umax(largest, __shfl_xor_sync(kFullWarp, largest, 1));
      largest = umax(largest, __shfl_xor_sync(kFullWarp, largest, 2));
      if (at.block % 4 == 0 && tiling.is_real(at.row, at.block)) p.amax.store_row(at.block / 4, at.row, largest);
    }
  }
  p.amax.store_cta(of_thread, scratch);
}

BsStatus run(const Params& params, bool per_row, int64_t ctas, const Context& context) {
  const auto go = [&](auto kernel) { return launch(kernel, ctas, kThreads, context, params); };
  if (params.tiling.grid.swizzled)
    return per_row ? go(nvfp4_output_kernel<true, true>) : go(nvfp4_output_kernel<true, false>);
  return per_row ? go(nvfp4_output_kernel<false, true>) : go(nvfp4_output_kernel<false, false>);
}

}  // namespace

int64_t nvfp4_output_pieces(int64_t n) { return ceil_div(n, kPiece); }

BsStatus nvfp4_output(const BsEpilogueProblem& problem, const Context& context) {
  const BsOperand& out = problem.quantized;
  Params params = {};
  params.accumulator = AccumulatorParams::make(problem);
  params.tiling = BlockTiling::make(out.rows, out.k, out.layout == BS_SWIZZLED_128X4, 1);
  params.level = SecondLevel::make(out, problem.out_amax, nullptr, 0);
  params.qdata = out.qdata;
  params.block_scale = out.block_scale;
  params.vector_qdata = is_aligned(out.qdata, 8);
  const int64_t pieces = nvfp4_output_pieces(problem.acc.cols);
  const int64_t ctas =
      std::min<int64_t>(kMaxPartials, one_wave(params.tiling.tiles(), kCtasPerMultiprocessor, context));
  params.amax = ReturnedAmax::make(problem, pieces, ctas, context);
  BS_RETURN_IF_BROKEN(run(params, out.scaling == BS_SCALING_ROW, ctas, context));
  return params.amax.finish(problem, pieces, ctas, context);
}

}  // namespace blockscale::cuda
