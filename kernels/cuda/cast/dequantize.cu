// SPDX-License-Identifier: Apache-2.0
// Codes and block scales to floats (docs/numerics.md section 6), or to code * block scale alone. A thread makes 16
// bytes of output at a time, four times in flight, so that stores are whole and coalesced.
#include "contract/checks.h"
#include "cuda/cast/e2m1_convert.cuh"
#include "cuda/launch.cuh"
#include "cuda/narrow.cuh"
#include "cuda/tiling.cuh"
#include "numerics/scale.h"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerMultiprocessor = 5;
constexpr int kDepth = 4;  // pieces a thread, 2^log_across apart

struct Params {
  const uint8_t* qdata;
  const uint8_t* block_scale;
  ScaleGrid grid;
  const float* amax;  // null: units
  bool per_row;
  int32_t e4m3_max;
  int64_t start_block;  // of the operand, at column 0 of out
  uint8_t* nan_rows;
  void* out;
  int64_t out_stride, rows, pieces;  // pieces of 16 bytes in a row of out
  int64_t tile_rows, tiles_across;
  int32_t log_across;
  bool vector_qdata, vector_out;
};

// kCount codes (4 or 8), the first in the low nibble.
template <int kCount>
__device__ __forceinline__ uint32_t load_piece(const uint8_t* from, bool vector) {
  if (vector) {
    if constexpr (kCount == 8) return __ldg(reinterpret_cast<const uint32_t*>(from));
    return __ldg(reinterpret_cast<const uint16_t*>(from));
  }
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) codes |= static_cast<uint32_t>(from[i]) << (8 * i);
  return codes;
}

// The factor of a block; marks its row where it is NaN and somebody asked.
__device__ __forceinline__ float block_factor(const Params& p, uint32_t scale, DecodeFactors second, int64_t row) {
  if (p.nan_rows && scale == kE4m3NanByte) {
    p.nan_rows[row] = 1;
    return 0.0f;
  }
  return p.amax ? block_decode(scale, second) : e4m3_value<float>(scale);
}

template <class Tag>
__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor)
    dequantize_kernel(const __grid_constant__ Params p) {
  constexpr int kCount = 16 / sizeof(typename Tag::Element);  // elements of a piece
  const int64_t step = int64_t{1} << p.log_across;
  for (TileWalk walk(p.tile_rows, p.tiles_across); walk.inside(); walk.advance()) {
    const int64_t row = walk.row * (kThreads >> p.log_across) + (threadIdx.x >> p.log_across);
    const int64_t first = (walk.col * kDepth << p.log_across) + (threadIdx.x & ((1 << p.log_across) - 1));
    if (row >= p.rows) continue;
    uint32_t codes[kDepth], scales[kDepth];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int64_t piece = first + i * step;
      codes[i] = scales[i] = 0;
      if (piece < p.pieces) {
        const int64_t block = p.start_block + piece / (kBlock / kCount);
        const int64_t element = (row * p.grid.blocks + p.start_block) * kBlock + piece * kCount;
        codes[i] = load_piece<kCount>(p.qdata + element / 2, p.vector_qdata);
        scales[i] = __ldg(p.block_scale + scale_offset(p.grid, row, block));
      }
    }
    DecodeFactors second = {};
    if (p.amax) second = decode_factors(p.amax[p.per_row ? row : 0], p.e4m3_max);
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int64_t piece = first + i * step;
      if (piece >= p.pieces) continue;
      const float factor = block_factor(p, scales[i], second, row);
      float values[kCount];
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] = e2m1_value_of(codes[i] >> (4 * j)) * factor;
      store_16_bytes<Tag>(p.out, row * p.out_stride + piece * kCount, values, kCount, p.vector_out);
    }
  }
}

}  // namespace

BsStatus dequantize(const BsDequantizeProblem& problem, const Context& context) {
  const BsOperand& x = problem.x;
  const BsMatrix& out = problem.out;
  if (out.dtype == BS_F64)
    return failure(BS_NOT_OFFERED, "dequantize: float64 output is not offered on CUDA; use float32.");
  if (out.rows == 0 || out.cols == 0) return ok_status();
  Params params = {};
  params.qdata = x.qdata;
  params.block_scale = x.block_scale;
  params.grid = ScaleGrid::make(x.rows, x.k, x.layout == BS_SWIZZLED_128X4);
  params.amax = problem.units ? nullptr : x.amax;
  params.per_row = x.scaling == BS_SCALING_ROW;
  params.e4m3_max = x.e4m3_max;
  params.start_block = problem.start_k / kBlock;
  params.nan_rows = problem.nan_rows;
  params.out = out.data;
  params.out_stride = out.row_stride;
  params.rows = out.rows;
  params.pieces = out.cols * dtype_bytes(out.dtype) / 16;
  params.log_across = log2_at_least(ceil_div(params.pieces, kDepth), 8);
  params.tile_rows = ceil_div(params.rows, kThreads >> params.log_across);
  params.tiles_across = ceil_div(params.pieces, int64_t{kDepth} << params.log_across);
  params.vector_qdata = is_aligned(x.qdata, 4);
  params.vector_out = has_vector_rows(out);
  const int64_t ctas = one_wave(params.tile_rows * params.tiles_across, kCtasPerMultiprocessor, context);
  return with_dtype(
      out.dtype, [&](auto tag) { return launch(dequantize_kernel<decltype(tag)>, ctas, kThreads, context, params); });
}

}  // namespace blockscale::cuda
