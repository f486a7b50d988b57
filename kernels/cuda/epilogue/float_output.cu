// SPDX-License-Identifier: Apache-2.0
// D = t rounded once to FP32, BF16 or FP16, and the maximum of |D| as stored. A warp takes 256 columns of a row.
#include "cuda/epilogue/accumulator.cuh"
#include "cuda/epilogue/epilogue_kernels.h"
#include "cuda/epilogue/returned_amax.cuh"
#include "cuda/launch.cuh"
#include "cuda/narrow.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCtasPerMultiprocessor = 4;
constexpr int64_t kPiece = 32 * kRun;

struct Params {
  AccumulatorParams accumulator;
  void* d;
  int64_t row_stride, pieces;
  ReturnedAmax amax;
  bool vector_d;
};

// Rounds to D's dtype and stores; t becomes what was stored.
template <class Tag>
__device__ __forceinline__ void store_run(const Params& p, int64_t row, int64_t col, int count, float (&t)[kRun]) {
  constexpr int kVector = 16 / sizeof(typename Tag::Element);
#pragma unroll
  for (int i = 0; i < kRun; ++i) t[i] = widen<Tag>(narrow<Tag>(t[i]));
#pragma unroll
  for (int i = 0; i < kRun; i += kVector) {
    float part[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) part[j] = t[i + j];
    store_16_bytes<Tag>(p.d, row * p.row_stride + col + i, part, count - i, p.vector_d);
  }
}

template <class Tag>
__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor)
    float_output_kernel(const __grid_constant__ Params p) {
  __shared__ uint32_t scratch[32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const AccumulatorParams& a = p.accumulator;
  const float alpha = read_alpha(a);
  uint32_t of_thread = 0;
  for (TileWalk walk(a.m, p.pieces, blockIdx.x * kWarps + warp, gridDim.x * kWarps); walk.inside(); walk.advance()) {
    const int64_t col = walk.col * kPiece + lane * kRun;
    const int count = static_cast<int>(max(int64_t{0}, min(int64_t{kRun}, a.n - col)));
    uint32_t largest = 0;
    if (count > 0) {
      float t[kRun];
      finish_accumulators(a, alpha, walk.row, col, count, t);
      store_run<Tag>(p, walk.row, col, count, t);
#pragma unroll
      for (int i = 0; i < kRun; ++i) largest = umax(largest, magnitude_bits(t[i]));
    }
    of_thread = umax(of_thread, largest);
    if (p.amax.of_row) {
      largest = warp_max(largest);
      if (lane == 0) p.amax.store_row(walk.col, walk.row, largest);
    }
  }
  p.amax.store_cta(of_thread, scratch);
}

}  // namespace

int64_t float_output_pieces(int64_t n) { return ceil_div(n, kPiece); }

BsStatus float_output(const BsEpilogueProblem& problem, const Context& context) {
  Params params = {};
  params.accumulator = AccumulatorParams::make(problem);
  params.d = problem.d.data;
  params.row_stride = problem.d.row_stride;
  params.pieces = float_output_pieces(problem.acc.cols);
  params.vector_d = has_vector_rows(problem.d);
  const int64_t items = problem.acc.rows * params.pieces;
  const int64_t ctas =
      std::min<int64_t>(kMaxPartials, one_wave(ceil_div(items, kWarps), kCtasPerMultiprocessor, context));
  params.amax = ReturnedAmax::make(problem, params.pieces, ctas, context);
  BS_RETURN_IF_BROKEN(with_dtype(problem.d.dtype, [&](auto tag) {
    return launch(float_output_kernel<decltype(tag)>, ctas, kThreads, context, params);
  }));
  return params.amax.finish(problem, params.pieces, ctas, context);
}

}  // namespace blockscale::cuda
